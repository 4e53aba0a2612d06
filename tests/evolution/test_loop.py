"""The loop with a proposer of its own: repair, several proposals of one call, budget; nothing needs a worker."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoengine.engine.options.evolution import EvolveOptions
from evoengine.engine.search_plan import make_plan
from evoengine.errors import ScreenError
from evoengine.evolution.counters import KernelCounter, with_files
from evoengine.evolution.loop import Evolution, EvolutionResult, EvolutionSettings, EvolutionStop
from evoengine.evolution.records import Context, Proposal
from evoengine.evolution.variant_searches import VariantSearches
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Edit, Evaluation, NewTunable, Patch, Problem, Status, Timing, Variant
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.jobs import Compile, Job
from evoengine.search.candidate.results import Compilation
from evoengine.space.data_dirs import data_dirs, packaged_dir
from evoengine.space.loader import find_space
from evoengine.system.futures import done_future
from evoengine.target import get_target
from tests.cli.calling import Done
from tests.evolution.conftest import BUDGET

BROKEN = Edit("scalar/kernel.cu.jinja", "no such text", "x")


@dataclass
class Stub:
    """Proposes a patch that does not match, and corrects it as told."""

    repaired: Patch | None
    several: int = 1
    repeats: bool = False
    contexts: list[Context] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    name: str = "patches"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        self.contexts.append(context)
        first = 0 if self.repeats else len(self.contexts) * 10
        edits = [replace(BROKEN, replace=f"{first + number}") for number in range(self.several)]
        return tuple(Proposal(self.name, (context.parent.family,), Patch((edit,)), origin="t") for edit in edits)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        self.messages.append(message)
        return None if self.repaired is None else replace(proposal, patch=self.repaired)


@pytest.fixture
def board(evolved: tuple[Path, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaderboard]:
    """A copy of the evolved leaderboard, with the weakened templates."""
    shutil.copyfile(evolved[0] / "board.db", tmp_path / "board.db")
    monkeypatch.setenv("EVOENGINE_DATA", str(evolved[0] / "data"))
    with Leaderboard(tmp_path / "board.db") as opened:
        yield opened


def run(board: Leaderboard, stub: Stub, budget: int, **settings: float) -> EvolutionResult:
    options = EvolveOptions(Problem(1, 1, 16, 32), family="scalar", device="emulator", db=str(board.path), workers=2)
    variants = [one.variant for one in board.variants.all()]
    with closing(VariantSearches(make_plan(options.search), variants, board)) as searches:
        chosen = EvolutionSettings(budget, 2, **settings)  # type: ignore[arg-type]
        return Evolution(chosen, searches, board, [stub]).run()


def test_a_rejected_proposal_is_repaired_once_with_the_message(board: Leaderboard) -> None:
    stub = Stub(Patch((), summary="the parent"))
    result = run(board, stub, BUDGET + 1)
    assert (result.stop, result.new) == (EvolutionStop.BUDGET_REACHED, 1)
    assert len(stub.messages) == 1
    own = stub.contexts[0].parent.patch
    number = 1 + (len(own.edits) if own is not None else 0)
    assert stub.messages[0].startswith(f"apply: edit {number} (scalar/kernel.cu.jinja): ")
    assert "'no such text'" in stub.messages[0]
    last = result.attempts[-1]
    assert (last.stage, last.summary, last.origin) == ("novelty", "the parent", "t")
    hopeless = Stub(None)
    assert run(board, hopeless, BUDGET + 2).attempts[-1].stage == "apply"
    assert len(hopeless.messages) == 1


def test_all_proposals_of_a_call_are_judged_within_the_budget(board: Leaderboard) -> None:
    stub = Stub(None, several=3)
    result = run(board, stub, BUDGET + 5)
    assert result.new == 5
    assert len(stub.contexts) == 2
    assert [one.stage for one in result.attempts[-5:]] == ["apply"] * 5


def test_a_model_that_repeats_itself_is_asked_once_for_each_proposal(board: Leaderboard) -> None:
    stub = Stub(None, repeats=True)
    result = run(board, stub, BUDGET + 6)
    by_parent: dict[str, list[str]] = {}
    for one in result.attempts[-result.new :]:
        by_parent.setdefault(one.parent, []).append(f"{one.stage} {one.reason == 'was proposed before'}")
    assert len(stub.contexts) == result.new == 6
    assert len(by_parent) < 6
    assert all(stages == ["apply False"] + ["novelty True"] * (len(stages) - 1) for stages in by_parent.values())


@pytest.mark.parametrize("constraint", ["7 // (NEW - 1) > 0", "NEW == 2", "UNKNOWN > NEW"])
def test_a_constraint_that_the_default_cannot_fulfil_is_rejected(board: Leaderboard, constraint: str) -> None:
    line = "    float maximum = stream.maximum;"
    edit = Edit("scalar/kernel.cu.jinja", line, f"{line}  // {constraint}")
    stub = Stub(Patch((edit,), (NewTunable("NEW", (1, 2), 1, "", constraint),)))
    result = run(board, stub, BUDGET + 1)
    assert result.attempts[-1].stage in ("space", "apply")
    assert result.attempts[-1].reason


def test_the_time_limit_ends_it_before_a_proposal(board: Leaderboard) -> None:
    stub = Stub(None)
    result = run(board, stub, BUDGET + 5, deadline_s=0.0)
    assert (result.stop, result.new, stub.contexts) == (EvolutionStop.TIME_LIMIT, 0, [])


def test_a_proposer_sees_rows_regions_archive_and_rejections(board: Leaderboard) -> None:
    stub = Stub(None, several=2)
    result = run(board, stub, BUDGET + 8)
    for context in stub.contexts:
        parent = context.parent
        assert context.family == "scalar"
        assert context.space.family == parent.family
        assert context.best[0].time_us == parent.time_us == min(row.time_us or 99 for row in context.best)
        assert {region.name for region in context.regions} >= {"step", "merge", "exponential"}
        assert all(row.status != "ok" and row.reason for row in context.failed)
        assert parent.family not in {one.family for one in (*context.picks, *context.mates)}
        assert context.mates
        assert all(one.patch is not None for one in context.mates)
        assert context.resources is not None
        assert context.verdict.startswith("passed ")
    rejected = stub.contexts[-1].rejected
    assert [one.stage for one in rejected] == ["apply", "apply", "apply"]
    assert rejected[0].reason == result.attempts[-3].reason


@dataclass
class NoCompiler:
    """Workers that compile no config."""

    workers: int = 1
    lost: tuple[str, ...] = ()
    configs: list[Config] = field(default_factory=list)

    def supports(self, kind: type[Job[Any]]) -> bool:
        return False

    def submit(self, job: Job[Any]) -> Future[Any]:
        assert isinstance(job, Compile), "nothing is examined"
        self.configs.append(job.config)
        return done_future(Compilation(job.config, Status.COMPILE_FAILED, "stub"))


def test_configs_of_another_problem_take_no_place_of_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, names = NoCompiler(), "evoengine.evolution.variant_searches.open_services"
    monkeypatch.setattr(names, lambda plan, stack: (compiler, compiler))
    line = "    float maximum = stream.maximum;"
    variant = Variant("scalar", Patch((Edit("scalar/kernel.cu.jinja", line, f"{line}  // same"),)))
    options = EvolveOptions(Problem(1, 1, 32, 32), family="scalar", device="emulator", db=str(tmp_path / "board.db"))
    plan = make_plan(options.search)
    with Leaderboard(tmp_path / "board.db") as board, closing(VariantSearches(plan, [variant], board)) as searches:
        space = searches.plan_for(variant.name, 1, (), None).families.taken[0].valid
        valid = list(dict.fromkeys(space.samples(np.random.default_rng(0), 40)))[:4]
        nearby = board.open_study(replace(plan.study_key, problem=Problem(1, 1, 16, 32)))
        for number, config in enumerate(valid[2:]):
            timing = Timing(1.0 + number, 1.0, 3.0, True, plan.method, (), None, "")
            board.record(nearby, Evaluation(config, Status.OK, code_hash=f"c{number}", timing=timing))
        checked = searches.check(variant.name, valid[0])
        assert (checked.failure, checked.candidates, compiler.configs) == ("compile", 1, valid[:1])
        searches.tune_more(variant.name, valid[1:2])
        assert compiler.configs == valid[:2]
        searches.tune(variant.name, 4, ())
        assert set(compiler.configs) == set(valid), "a search tries them"


def test_counters_name_lines_and_files() -> None:
    problem, target = Problem(1, 1, 16, 32), get_target("l4")
    space = find_space("scalar")
    builder = Builder(BuildSetup((problem,), target, target.arch, (space,), (packaged_dir("templates"),), None))
    kernel = builder.build(space.build(problem, target).starts()[0]).kernel
    assert kernel is not None
    counter = KernelCounter(problem, target, None)
    counts, plain = counter.count(kernel, lines=True), counter.count(kernel, lines=False)
    assert plain.lines == ()
    assert counts.features["registers"] == kernel.binary.resources.registers
    assert plain.features["instructions"] == pytest.approx(counts.features["instructions"], rel=0.05)
    texts = kernel.source.text.splitlines()
    lines = with_files(counts.lines, TemplateLibrary(*data_dirs("templates")).files("scalar"))
    own = [line for line in lines if line.text]
    assert len(own) >= 10
    assert all(texts[line.line - 1].strip() == line.text for line in own)
    assert sum(line.instructions for line in lines) <= counts.features["instructions"]
    assert {line.file for line in own} >= {"scalar/kernel.cu.jinja", "partials/core/softmax.cuh"}
    assert sum(line.global_bytes for line in lines) > 0
    assert sum(line.shared_wavefronts for line in lines) >= sum(line.wasted_wavefronts for line in lines)
    place = "    extern __shared__ __align__(128) unsigned char smem[];\n"
    text = kernel.source.text.replace(place, place + "    if (clock() == 7) return;\n")
    with pytest.raises(ScreenError, match="register: PTX line"):
        counter.count(replace(kernel, source=replace(kernel.source, text=text, untrusted=True)), lines=True)
