"""Generated candidates between compiler and GPU: real compile workers and admission workers, which need no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evoengine.engine.workers.admitting_compiler import AdmittingCompiler, admission_workers
from evoengine.engine.workers.job_services import DeferredService
from evoengine.engine.workers.pools import compile_workers
from evoengine.evolution.variant_searches import VariantCompiler
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Edit, Patch, Problem, Status, Variant
from evoengine.parity.mutants.scalar import BASE
from evoengine.search.candidate.build import BuildSetup
from evoengine.search.candidate.jobs import Compile, CompileVariant
from evoengine.search.candidate.results import Compilation
from evoengine.search.settings import SearchSettings
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.search.synthetic import SyntheticExaminer, open_search

ROOT = Path(__file__).resolve().parents[2]
FILE = "scalar/kernel.cu.jinja"
LINE = "    float score[Cfg::KEYS_PER_STEP];\n"
BEYOND = "    if (k_rows.g_tensor[1 << 20] == 0x1234) return;\n"
"""Reads behind the tensor: neither NVRTC nor the screens object."""
PROBLEM = Problem(1, 1, 16, 32)
TARGET = get_target("l4")


class Opener:
    """Starts admission workers and counts how often."""

    def __init__(self) -> None:
        self.opened = 0

    def __call__(self) -> DeferredService:
        self.opened += 1
        return admission_workers((PROBLEM,), TARGET, 1)


@pytest.fixture(scope="module")
def opener() -> Opener:
    return Opener()


@pytest.fixture(scope="module")
def compiler(opener: Opener, shared_cache: Path) -> Iterator[AdmittingCompiler]:
    setup = BuildSetup((PROBLEM,), TARGET, "sm_89", (find_space("scalar"),), (ROOT / "templates",), shared_cache)
    with (
        closing(compile_workers(setup, 1)) as workers,
        closing(AdmittingCompiler(workers, opener)) as admitting,
    ):
        yield admitting


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    with Leaderboard(database_url(str(tmp_path / "board.db"))) as opened:
        yield opened


def variant_of(line: str, text: str) -> CompileVariant:
    """Returns the compilation of a variant with a line of the scalar kernel replaced."""
    variant = Variant("scalar", Patch((Edit(FILE, line, text),)))
    return CompileVariant(find_space(variant.name, (variant,)).config(BASE), variant)


def outcomes(compiler: AdmittingCompiler, jobs: Sequence[Compile]) -> list[Compilation]:
    waiting: list[Future[Any]] = [compiler.submit(job) for job in jobs]
    return [one.result(timeout=300) for one in waiting]


def test_the_product_admits_only_what_the_emulator_admits(compiler: AdmittingCompiler, opener: Opener) -> None:
    (own,) = outcomes(compiler, [Compile(find_space("scalar").config(BASE))])
    assert own.status is Status.OK, own.reason
    assert not own.admitted
    assert "admit" not in own.stage_seconds
    assert opener.opened == 0, "trusted sources need no admission workers"

    harmless = variant_of(LINE, "    // the same\n" + LINE)
    beyond = variant_of(LINE, BEYOND + LINE)
    good, out_of_bounds, again = outcomes(compiler, [harmless, beyond, harmless])
    for compilation in (good, again):
        assert (compilation.status, compilation.reason, compilation.admitted) == (Status.OK, "", True)
        assert compilation.candidate is not None
        for kernel in compilation.candidate.kernels:
            assert kernel.source.untrusted
            kernel.require_admitted()
    assert good.stage_seconds["admit"] > 0
    assert out_of_bounds.status is Status.LAUNCH_FAILED, out_of_bounds.reason
    assert out_of_bounds.reason.startswith("on the emulator: ")
    assert out_of_bounds.candidate is None
    assert opener.opened == 1

    (once_more,) = outcomes(compiler, [harmless])
    assert once_more.admitted
    assert "admit" not in once_more.stage_seconds, "it was admitted before"


@pytest.mark.parametrize("harmless", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_search_examines_only_what_was_admitted(
    compiler: AdmittingCompiler, board: Leaderboard, harmless: bool
) -> None:
    job = variant_of(LINE, ("    // searched\n" if harmless else BEYOND) + LINE)
    space = find_space(job.variant.name, (job.variant,)).build(PROBLEM, TARGET)
    examiner = SyntheticExaminer(value_of=lambda config: 1.0 + int(config["KEYS_PER_STEP"]))
    variants = VariantCompiler(compiler, {job.variant.name: job.variant})
    search, study = open_search(board, space, SearchSettings(budget=1, strategy="random"), variants, examiner)
    search.run()
    found = {entry.evaluation.status for entry in board.evaluations(study)}
    assert found == ({Status.OK} if harmless else {Status.LAUNCH_FAILED})
    assert len(examiner.examined) == (1 if harmless else 0)


def test_a_cancelled_compilation_is_not_admitted_and_others_go_on(compiler: AdmittingCompiler) -> None:
    jobs = [variant_of(LINE, f"    // {number}\n" + LINE) for number in range(2)]
    waiting = [compiler.submit(job) for job in jobs]
    assert waiting[-1].cancel()
    assert waiting[-1].cancelled()
    assert [one.result(timeout=300).admitted for one in waiting[:-1]] == [True]
    (later,) = outcomes(compiler, jobs[-1:])
    assert later.admitted
