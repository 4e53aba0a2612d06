#!/usr/bin/env python3
"""Draws random valid configs, compiles each for the architectures of its family, and runs them through the parity gate.

    .venv/bin/python scripts/measure/sample_gate.py --family mma --count 300 --device emulator
    .venv/bin/python scripts/measure/sample_gate.py --family mma --count 2000 --device cuda --seed 1
    .venv/bin/python scripts/measure/sample_gate.py --family wgmma --count 300 --device emulator --target h200

What the search space calls valid must compile everywhere and pass. The configs are spread over problems that together
ask for every feature; a problem that the family does not support is left out. The table at the end counts statuses by
problem; every config that did not pass is printed when it is found, and makes the exit status 1. A kernel that spills
registers is correct, only slow: those are counted apart.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import CandidateError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, DeviceInfo, Status
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import draw_cases
from evoengine.search.candidate.device_spec import DeviceKind, DeviceSpec, open_device
from evoengine.search.selftest.gate_controls import PROBLEMS
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space
from evoengine.target import Target

ARCHITECTURES: Final = ("sm_80", "sm_86", "sm_89", "sm_90")
MAX_FLOPS: Final = 10**8
"""Work of a problem's own case."""
TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class Job:
    """One config to build and judge."""

    name: str
    """Of the problem."""
    config: Config
    seed: int
    """Of the inputs."""


@dataclass(frozen=True)
class Made:
    """What became of a config without a device."""

    kernel: Kernel | None
    status: Status
    reason: str
    spills: bool


class Maker:
    """Builds configs; served by a worker process."""

    def __init__(self, family: str, target: Target, run_arch: str, archs: tuple[str, ...]) -> None:
        self._template = TemplateLibrary(data_dir("templates")).load(family)
        self._space = find_space(family)
        self._target = target
        self._run_arch = run_arch
        self._archs = archs
        self._compiler = Compiler(None)

    def make(self, job: Job) -> Made:
        """Compiles for all architectures and keeps the binary for the device's."""
        arch, problem = "", PROBLEMS[job.name]
        spills = False
        try:
            source = self._template.render(job.config, problem, self._space, self._target)
            asked = [arch for arch in self._archs if self._template.supports(problem, arch) is None]
            for arch in dict.fromkeys((*asked, self._run_arch)):  # the device's own comes last, or is there
                binary = self._compiler.compile(source, arch)
                spills |= binary.resources.spill_bytes > 0
                if arch == self._run_arch:
                    kernel = Kernel(source, binary)
        except CandidateError as error:
            return Made(None, error.status, f"{arch}: {error}", spills)
        reason = resource_gate(kernel.binary, source.launch, self._target)
        if reason is not None:
            return Made(None, Status.RESOURCE_LIMIT, reason, spills)
        return Made(kernel, Status.OK, "", spills)


class Gatekeeper:
    """Judges kernels on one device; served by a worker process."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._device = open_device(spec)

    @property
    def healthy(self) -> bool:
        """False once a fault has wrecked the device's context."""
        return self._device.healthy

    def describe(self) -> tuple[DeviceInfo, Target]:
        """What the device is."""
        return self._device.info, self._device.target

    def judge(self, job: Job, kernel: Kernel) -> tuple[Status, str]:
        """The gate's verdict."""
        with closing(self._device.load(kernel)) as loaded:
            verdict = run_gate(loaded, _cases(job.name, job.seed))
        return (Status.OK, "") if verdict.passed else (Status.PARITY_FAILED, verdict.reason)


@functools.lru_cache(maxsize=8)
def _cases(name: str, seed: int) -> tuple[ParityCase, ...]:
    return draw_cases(PROBLEMS[name], seed, MAX_FLOPS)


def main() -> int:
    arguments = _arguments()
    spec = DeviceSpec(arguments.device, arguments.target)
    gate_workers = 1 if arguments.device == "cuda" else max(1, arguments.jobs // 2)
    with WorkerPool(functools.partial(Gatekeeper, spec), gate_workers, TIMEOUT_S, name="gate") as gate:
        info, target = gate.submit("describe").result()
        jobs = draw(arguments, target, info.arch)
        maker = functools.partial(Maker, arguments.family, target, info.arch, tuple(arguments.archs))
        with WorkerPool(maker, arguments.jobs, TIMEOUT_S, name="make") as makers:
            made = [(job, makers.submit("make", job)) for job in jobs]
            counts = count(made, gate)
    print(table(counts, f"{arguments.family} on {info.name}, {info.arch}, seed {arguments.seed}"))
    return 0 if all(status in (Status.OK.value, "spills") for _, status in counts) else 1


def draw(arguments: argparse.Namespace, target: Target, arch: str) -> list[Job]:
    """The sample, problem by problem."""
    space = find_space(arguments.family)
    template = TemplateLibrary(data_dir("templates")).load(arguments.family)
    names = [name for name in arguments.problems if template.supports(PROBLEMS[name], arch) is None]
    if not names:
        sys.exit(f"family {arguments.family} serves none of these problems on {arch}: give another --target")
    rng = np.random.default_rng(arguments.seed)
    jobs = []
    for place, name in enumerate(names):
        valid = space.build(PROBLEMS[name], target)
        share = arguments.count * (place + 1) // len(names) - arguments.count * place // len(names)
        jobs += [Job(name, valid.sample(rng), arguments.seed + turn % 4) for turn in range(share)]
    return jobs


def count(made: list[tuple[Job, Future[Made]]], gate: WorkerPool) -> Counter[tuple[str, str]]:
    """Judges what was made, in order, and counts (problem, status)."""
    counts: Counter[tuple[str, str]] = Counter()
    for job, status, reason, spills in _outcomes(made, gate):
        counts[job.name, status.value] += 1
        counts[job.name, "spills"] += spills
        if status is not Status.OK:
            print(f"{job.name} ({PROBLEMS[job.name].key}): {status.value}: {reason}\n    {job.config}", flush=True)
    return counts


def _outcomes(
    made: list[tuple[Job, Future[Made]]], gate: WorkerPool, window: int = 64
) -> Iterator[tuple[Job, Status, str, bool]]:
    """Keeps up to `window` kernels in flight, for the makers and the gate to work at once."""
    waiting: list[tuple[Job, Made, Future[tuple[Status, str]] | None]] = []
    for job, future in made:
        result = future.result()
        verdict = None if result.kernel is None else gate.submit("judge", job, result.kernel)
        waiting.append((job, Made(None, result.status, result.reason, result.spills), verdict))
        if len(waiting) > window:
            yield _outcome(*waiting.pop(0))
    for item in waiting:
        yield _outcome(*item)


def _outcome(job: Job, made: Made, verdict: Future[tuple[Status, str]] | None) -> tuple[Job, Status, str, bool]:
    if verdict is None:
        return job, made.status, made.reason, made.spills
    try:
        status, reason = verdict.result()
    except CandidateError as error:
        status, reason = error.status, str(error)
    return job, status, reason, made.spills


def table(counts: Counter[tuple[str, str]], title: str) -> str:
    """Counts by problem and status, as Markdown."""
    statuses = sorted({status for _, status in counts}, key=lambda status: (status != "ok", status))
    names = list(dict.fromkeys(name for name, _ in counts))
    rows = [[name, *(str(counts[name, status]) for status in statuses)] for name in names]
    total = ["all", *(str(sum(counts[name, status] for name in names)) for status in statuses)]
    lines = [f"{title}", "", "| problem | " + " | ".join(statuses) + " |", "|---" * (len(statuses) + 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in (*rows, total))])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    devices: tuple[DeviceKind, ...] = ("emulator", "cuda")
    parser.add_argument("--family", default="mma")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--device", choices=devices, default="emulator")
    parser.add_argument("--target", default="l4", help="whose limits the emulator stands for")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--archs", nargs="*", default=list(ARCHITECTURES), help="compile for these too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
