"""Synthetic leaderboards with rows like those of a search on an H200, and the hashes of real kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Resources, Status, Timing, Value, Verdict
from evoengine.parity.mutants.mma import BASE
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space, parse_space
from evoengine.target import get_target

GPU: Final = "NVIDIA H200"
H200: Final = get_target("h200")
MISSION: Final = Problem(1, 8, 512, 64)


def mma(overrides: Mapping[str, Value] | None = None) -> Config:
    """Returns a config of the family mma that is valid for most problems."""
    return find_space("mma").config({**BASE, **(overrides or {})})


def wgmma() -> Config:
    """Returns the first start of the family wgmma."""
    space = find_space("wgmma")
    return space.config({tunable.name: tunable.values[0] for tunable in space.tunables} | dict(space.starts[0].values))


@dataclass(frozen=True)
class Entry:
    """Properties of one row."""

    problem: Problem
    config: Config
    median_us: float = 5.0
    baseline_us: float | None = 9.0
    crowned: bool = True
    gpu: str = GPU
    arch: str = "sm_90"
    predicted: bool = False
    method: str = "graph-warm"
    space: str = ""
    """Text of a custom search space; empty for the packaged one."""


def store(path: Path, cache: Path, *entries: Entry) -> list[int]:
    """Writes a leaderboard and returns the row ids."""
    library, compiler, ids = TemplateLibrary(data_dir("templates")), Compiler(cache), []
    with Leaderboard(f"sqlite:///{path}") as board:
        for entry in entries:
            family = entry.config.family
            space = parse_space(entry.space, "own.toml") if entry.space else find_space(family)
            source = library.load(family).render(entry.config, entry.problem, space, H200.compiled_for(entry.arch))
            binary = compiler.compile(source, entry.arch)
            kind = "emulator" if entry.predicted else "cuda"
            device = DeviceInfo(kind, entry.gpu, entry.arch, entry.predicted, "13.0", "13.0.88")
            key = StudyKey(entry.problem, family, device, entry.method, "random", 0)
            if entry.space:
                key = replace(key, space_key="own", own_spaces=((family, entry.space),))
            study = board.open_study(key)
            timing = Timing(
                *(entry.median_us, entry.median_us - 0.1, entry.median_us + 0.1, entry.predicted, entry.method),
                baseline_us=entry.baseline_us,
                baseline="" if entry.baseline_us is None else "sdpa-cudnn",
            )
            evaluation = Evaluation(
                config=entry.config,
                status=Status.OK,
                source_hash=source.source_hash,
                code_hash=binary.code_hash,
                template_hash=source.template_hash,
                source=source.text,
                resources=Resources(96, 0, 0, 0, 32768, 128),
                verdict=Verdict(True, 1e-4, 1e-3, 1e-4, 9, "ragged"),
                timing=timing,
            )
            ids.append(board.record(study, evaluation))
            if entry.crowned:
                board.record_challenge(study.scope, ids[-1], None, None)
    return ids
