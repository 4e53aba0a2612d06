#!/usr/bin/env python3
"""Compiles random valid configs, and checks them or summarises their resources.

    python scripts/measure/sample_configs.py gate --family mma --count 300 --device emulator
    python scripts/measure/sample_configs.py gate --family mma --count 2000 --device cuda --seed 1
    python scripts/measure/sample_configs.py gate --family wgmma --count 300 --device emulator --target h200
    python scripts/measure/sample_configs.py resources --problem default --count 120 --target h200

``gate`` compiles each config for the architectures of its family and runs it through the parity gate: every config that
a search space calls valid must compile and pass. The configs are spread over problems that together need every
feature; problems that the family does not support are left out. It prints each config that does not pass, then a table
of statuses by problem, and exits with 1 if any config did not pass. Kernels that spill registers pass and are counted.

``resources`` needs no GPU. It prints the register spills, the occupancy and the rejections by the resource gate, which
shows how much pruning is possible between a search space's constraints and the first run of a kernel.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import common
import numpy as np

from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import CandidateError, UsageError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import occupancy, performance_loss, resource_gate
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, DeviceInfo, Status, parse_problem
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import CasePool, build_pool, draw_cases
from evoengine.search.candidate.device_spec import DeviceKind, DeviceSpec, open_device
from evoengine.search.selftest.gate_controls import PROBLEMS
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import Target, get_target

ARCHITECTURES: Final = ("sm_80", "sm_86", "sm_89", "sm_90")
MAX_FLOPS: Final = 10**8
"""Limit on the work of a parity case."""
TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class Job:
    """One config to build and check."""

    problem: str
    """Name of a problem in PROBLEMS."""
    config: Config
    seed: int
    """Seed of the inputs."""


@dataclass(frozen=True)
class Built:
    """Result of compiling one config."""

    kernel: Kernel | None
    status: Status
    reason: str
    spills: bool


Examine = Callable[[Job, Kernel], Future[tuple[Status, str]]]
"""Submits a kernel to the gate."""


class ConfigBuilder:
    """Builds configs in a worker process."""

    def __init__(self, family: str, target: Target, run_arch: str, archs: tuple[str, ...]) -> None:
        self._template = TemplateLibrary(data_dir("templates")).load(family)
        self._space = find_space(family)
        self._target = target
        self._run_arch = run_arch
        self._archs = archs
        self._compiler = Compiler(None)

    def build(self, job: Job) -> Built:
        """Compiles for all architectures; keeps the binary of the device's own."""
        arch, problem = "", PROBLEMS[job.problem]
        spills = False
        try:
            source = self._template.render(job.config, problem, self._space, self._target)
            asked = [arch for arch in self._archs if self._template.supports(problem, arch) is None]
            for arch in dict.fromkeys((*asked, self._run_arch)):  # the device's own architecture may be among them
                binary = self._compiler.compile(source, arch)
                spills |= binary.resources.spill_bytes > 0
                if arch == self._run_arch:
                    kernel = Kernel(source, binary)
        except CandidateError as error:
            return Built(None, error.status, f"{arch}: {error}", spills)
        reason = resource_gate(kernel.binary, source.launch, self._target) or performance_loss(kernel.binary)
        if reason is not None:
            return Built(None, Status.RESOURCE_LIMIT, reason, spills)
        return Built(kernel, Status.OK, "", spills)


class GateWorker:
    """Runs kernels through the parity gate on one device, in a worker process."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._device = open_device(spec)

    @property
    def healthy(self) -> bool:
        return self._device.healthy

    def describe(self) -> tuple[DeviceInfo, Target]:
        return self._device.info, self._device.target

    def examine(self, job: Job, kernel: Kernel, every_case: bool) -> tuple[Status, str]:
        if every_case:
            pool = _pool(job.problem)
            cases = (*pool.everything, *pool.large, *pool.expanded_for(kernel.source.launch))
        else:
            cases = _cases(job.problem, job.seed)
        with closing(self._device.load(kernel)) as loaded:
            verdict = run_gate(loaded, cases)
        return (Status.OK, "") if verdict.passed else (Status.PARITY_FAILED, verdict.reason)


@functools.lru_cache(maxsize=8)
def _cases(name: str, seed: int) -> tuple[ParityCase, ...]:
    return draw_cases(PROBLEMS[name], seed, MAX_FLOPS)


@functools.lru_cache(maxsize=2)
def _pool(name: str) -> CasePool:
    return build_pool(PROBLEMS[name], 0, MAX_FLOPS)


def check_sample(arguments: argparse.Namespace) -> int:
    """Runs a sample through the gate; returns 1 if any config did not pass."""
    spec = DeviceSpec(arguments.device, arguments.target)
    gate_workers = 1 if arguments.device == "cuda" else max(1, arguments.jobs // 2)
    with WorkerPool(functools.partial(GateWorker, spec), gate_workers, TIMEOUT_S, name="gate") as gate:
        info, target = gate.submit("describe").result()
        jobs = draw(arguments, target, info.arch)
        factory = functools.partial(ConfigBuilder, arguments.family, target, info.arch, tuple(arguments.archs))
        with WorkerPool(factory, arguments.jobs, TIMEOUT_S, name="build") as builders:
            counts = count(
                [(job, builders.submit("build", job)) for job in jobs],
                lambda job, kernel: gate.submit("examine", job, kernel, arguments.every_case),
            )
    print(table(counts, f"{arguments.family} on {info.name}, {info.arch}, seed {arguments.seed}"))
    return 0 if all(status in (Status.OK.value, "spills") for _, status in counts) else 1


def draw(arguments: argparse.Namespace, target: Target, arch: str) -> list[Job]:
    """The sample, spread evenly over the supported problems.

    Raises:
        UsageError: The family supports none of the problems on this architecture.
    """
    space = find_space(arguments.family)
    template = TemplateLibrary(data_dir("templates")).load(arguments.family)
    names = [name for name in arguments.problems if template.supports(PROBLEMS[name], arch) is None]
    if not names:
        raise UsageError(f"family {arguments.family} supports none of these problems on {arch}: change --target")
    rng = np.random.default_rng(arguments.seed)
    jobs = []
    for place, name in enumerate(names):
        valid = space.build(PROBLEMS[name], target)
        share = arguments.count * (place + 1) // len(names) - arguments.count * place // len(names)
        jobs += [Job(name, valid.sample(rng), arguments.seed + turn % 4) for turn in range(share)]
    return jobs


def count(built: list[tuple[Job, Future[Built]]], examine: Examine) -> Counter[tuple[str, str]]:
    """Checks the built kernels in order; counts (problem, status)."""
    counts: Counter[tuple[str, str]] = Counter()
    for job, status, reason, spills in _outcomes(built, examine):
        counts[job.problem, status.value] += 1
        counts[job.problem, "spills"] += spills
        if status is not Status.OK:
            print(
                f"{job.problem} ({PROBLEMS[job.problem].key}): {status.value}: {reason}\n    {job.config}", flush=True
            )
    return counts


def _outcomes(
    built: list[tuple[Job, Future[Built]]], examine: Examine, window: int = 64
) -> Iterator[tuple[Job, Status, str, bool]]:
    """Yields job, status, reason and spills; up to `window` kernels are in flight, so building and checking overlap."""
    waiting: list[tuple[Job, Built, Future[tuple[Status, str]] | None]] = []
    for job, future in built:
        result = future.result()
        verdict = None if result.kernel is None else examine(job, result.kernel)
        waiting.append((job, Built(None, result.status, result.reason, result.spills), verdict))
        if len(waiting) > window:
            yield _outcome(*waiting.pop(0))
    for item in waiting:
        yield _outcome(*item)


def _outcome(job: Job, built: Built, verdict: Future[tuple[Status, str]] | None) -> tuple[Job, Status, str, bool]:
    if verdict is None:
        return job, built.status, built.reason, built.spills
    try:
        status, reason = verdict.result()
    except CandidateError as error:
        status, reason = error.status, str(error)
    return job, status, reason, built.spills


def table(counts: Counter[tuple[str, str]], title: str) -> str:
    """Counts by problem and status, as Markdown."""
    statuses = sorted({status for _, status in counts}, key=lambda status: (status != "ok", status))
    names = list(dict.fromkeys(name for name, _ in counts))
    rows = [[name, *(str(counts[name, status]) for status in statuses)] for name in names]
    total = ["all", *(str(sum(counts[name, status] for name in names)) for status in statuses)]
    lines = [f"{title}", "", "| problem | " + " | ".join(statuses) + " |", "|---" * (len(statuses) + 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in (*rows, total))])


def summarise_resources(arguments: argparse.Namespace) -> int:
    """Prints spills, occupancy and rejections of a sample; always returns 0."""
    problem, target = parse_problem(arguments.problem), get_target(arguments.target)
    space = find_space(arguments.family)
    valid = space.build(problem, target)
    template = TemplateLibrary(data_dir("templates")).load(arguments.family)
    compiler, rng = Compiler(None), np.random.default_rng(arguments.seed)
    spills, ctas, refused = [], Counter[int](), 0
    for _ in range(arguments.count):
        source = template.render(valid.sample(rng), problem, space, target)
        binary = compiler.compile(source, target.arch)
        launch = source.launch
        needs = replace(binary.resources, threads=launch.threads, dynamic_smem_bytes=launch.smem_bytes)
        spills.append(needs.spill_bytes)
        ctas[occupancy(needs, target).blocks_per_sm] += 1
        refused += resource_gate(binary, launch, target) is not None
    spilling = sorted(filter(None, spills))
    print(f"{arguments.count} random valid configs of {arguments.family}, {problem.key}, {target.name} ({target.arch})")
    print(f"rejected by the resource gate: {refused}")
    print(f"spilling: {len(spilling)}, bytes per thread {spilling}, limit {SPILL_LIMIT_BYTES}")
    print(f"CTAs per SM: {', '.join(f'{count} have {blocks}' for blocks, count in sorted(ctas.items()))}")
    return 0


def main() -> int:
    parser = common.parser(__doc__)
    modes = parser.add_subparsers(required=True)
    gate = modes.add_parser("gate", help="Run a sample through the parity gate.")
    devices: tuple[DeviceKind, ...] = ("emulator", "cuda")
    gate.add_argument("--count", type=int, default=300, help="Number of configs.")
    gate.add_argument("--device", choices=devices, default="emulator", help="Where kernels run.")
    gate.add_argument("--target", default="l4", help="GPU whose limits the emulator applies.")
    gate.add_argument(
        "--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME", help="Problems to use."
    )
    gate.add_argument("--archs", nargs="*", default=list(ARCHITECTURES), help="Further architectures to compile for.")
    gate.add_argument("--every-case", action="store_true", help="Check each config on all cases, as finalists are.")
    gate.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Worker processes.")
    gate.set_defaults(act=check_sample)
    resources = modes.add_parser("resources", help="Summarise registers, spills and occupancy.")
    resources.add_argument("--problem", default="default", help="Name or shape.")
    resources.add_argument("--target", default="h200", help="GPU to compile for.")
    resources.add_argument("--count", type=int, default=120, help="Number of configs.")
    resources.set_defaults(act=summarise_resources)
    for mode in (gate, resources):
        mode.add_argument("--family", default="mma", help="Template family.")
        mode.add_argument("--seed", type=int, default=0, help="Random seed.")
    arguments = parser.parse_args()
    return int(arguments.act(arguments))


if __name__ == "__main__":
    common.run(main)
