#!/usr/bin/env python3
"""Compares the emulator's counters with Nsight Compute's, kernel by kernel, on the GPU at hand.

    .venv/bin/python scripts/measure/check_counters.py --count 40 --out docs/results/counters-h200.md
    .venv/bin/python scripts/measure/check_counters.py --count 6 --emulate-only        # without a GPU: what would be compared

Configs of every family are drawn, the good ones that the search spaces name first. Each is compiled for the GPU, run on
the emulator with counters, and run twice under ncu, for bank conflicts and for all else; many kernels share one process
there. Which of ncu's metrics is which counter, and why, stands in evoengine/device/tools/hardware_counters.py. Where nvdisasm
is at hand, a third column scales the emulator's count of each source line by how many machine instructions ptxas made
of its PTX instructions. The exit status is 1 where a required counter differs by more than the bound both ways.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.tools.hardware_counters import ARBITRATION, COUNTERS, HardwareCounter
from evoengine.device.tools.launcher import LaunchJob, launch
from evoengine.device.tools.ncu import ncu_command, parse_raw_page, require_ncu, trouble_in
from evoengine.device.workers.wire import decode, encode
from evoengine.emulator.counters.report import InstructionCounts, LaunchReport, mma_flops
from evoengine.emulator.ptx.parser import parse
from evoengine.engine.families import choose_families
from evoengine.errors import CandidateError, EvoEngineError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.disassembly import disassemble, find_disassembler, machine_code
from evoengine.kernel.compile.line_table import source_lines
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, KernelCounters, Problem, parse_problem
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space
from evoengine.target import Target, get_target

BOUND: Final = 0.02
NCU_LIMIT_S: Final = 230.0
PROBLEMS: Final = (
    parse_problem("1x4x256x64"),
    parse_problem("1x2x256x64", causal=True),
    parse_problem("1x2x200x128"),  # no multiple of any tile
)
Place = tuple[int, ...]
HMMA_FLOPS: Final = 4096
"""Of one HMMA.16816, the machine instruction of m16n8k16."""


@dataclass(frozen=True)
class Metric:
    """One thing that both sides count; its name is that of a hardware counter."""

    name: str
    required: bool
    """Whether it must agree within the bound."""
    sass: tuple[str, ...] = ()
    """Machine instructions that it counts, where it counts instructions."""

    @property
    def counter(self) -> HardwareCounter:
        """The hardware's side."""
        return next(counter for counter in COUNTERS if counter.name == self.name)


METRICS: Final = (
    Metric("instructions", required=False),
    Metric("tensor instructions", True, ("HMMA",)),
    Metric("shared loads", True, ("LDS",)),
    Metric("ldmatrix", True, ("LDSM",)),
    Metric("shared stores", True, ("STS",)),
    Metric("wavefronts, loads", True),
    Metric("wavefronts, stores", True),
    Metric("conflicts, loads", True),
    Metric("conflicts, stores", True),
    Metric("conflicts, cp.async", required=False),
    Metric("conflicts less arbitration", required=False),
    Metric("sectors, loads", True),
    Metric("sectors, stores", True),
    Metric("sectors, cp.async", True),
)


@dataclass(frozen=True)
class Case:
    """One kernel to look at."""

    name: str
    config: Config
    problem: Problem


@dataclass(frozen=True)
class Counted:
    """What the emulator says of one launch, and of the same by SASS where there is a disassembler."""

    case: str
    entry: str
    values: Mapping[str, float]
    by_sass: Mapping[str, float]


def choose_cases(target: Target, count: int, seed: int) -> list[Case]:
    """At least ``count`` kernels, spread over the families and problems."""
    families = sorted(path.stem for path in data_dir("search_spaces").glob("*.toml"))
    rng = np.random.default_rng(seed)
    cases: list[Case] = []
    for family in families:
        for number, problem in enumerate(PROBLEMS):
            valid = choose_families((find_space(family),), problem, target).taken[0].valid
            wanted = -(-count // (len(families) * len(PROBLEMS)))
            configs = list(valid.starts())[:wanted]
            configs += [valid.sample(rng) for _ in range(wanted - len(configs))]
            cases += [Case(f"{family} {number}.{n}", config, problem) for n, config in enumerate(configs)]
    return cases


Prepared = tuple[tuple[Counted, ...], bytes]


def try_to_prepare(case: Case, target: Target) -> Prepared | None:
    """:func:`prepare`, or None, with a line that says why, for a kernel that does not compile or run."""
    try:
        return prepare(case, target)
    except CandidateError as error:
        print(f"left out: {case.name}: {error}", file=sys.stderr)
        return None


def prepare(case: Case, target: Target) -> Prepared:
    """Runs one kernel on the emulator; also the job that launches the same on the GPU."""
    space = find_space(case.config.family)
    template = TemplateLibrary(data_dir("templates")).load(case.config.family)
    source = template.render(case.config, case.problem, space, target)
    kernel = Kernel(source, Compiler(None).compile(source, target.arch))
    inputs = make_inputs(case.problem, "normal", 0)
    loaded = EmulatorDevice(target, target.arch, counters=True, representative_flops=1 << 62).load(kernel)
    loaded.attention(inputs)
    reports = loaded.profile(case.problem).reports
    entries = [step.entry for step in source.launch.steps(case.problem)]
    found = tuple(
        Counted(case.name, entry, our_values(report), sass_values(kernel, entry, report))
        for entry, report in zip(entries, reports, strict=True)
    )
    return found, encode(LaunchJob.of(kernel, inputs))


def our_values(report: LaunchReport) -> dict[str, float]:
    """The emulator's side of each metric, in machine instructions: ``wmma`` makes several of one."""
    loads, stores = _shared(report, "ld", "ldmatrix", "wmma.load"), _shared(report, "st", "stmatrix", "wmma.store")
    copies = _shared(report, "cp")
    counted: Counter[str] = Counter()
    for site in report.sites:
        name, factor = machine_instructions(site.opcode, bool(site.wavefronts))
        counted[name] += site.executions * factor
    return {
        "instructions": report.warp_instructions,
        **{metric.name: counted[metric.name] for metric in METRICS if metric.sass},
        "conflicts, loads": sum(site.conflicts for site in loads),
        "conflicts, stores": sum(site.conflicts for site in stores),
        "conflicts, cp.async": sum(site.conflicts for site in copies),
        "conflicts less arbitration": sum(site.conflicts for site in (*loads, *stores, *copies)),
        "wavefronts, cp.async": sum(site.wavefronts for site in copies),
        "wavefronts, loads": sum(site.wavefronts for site in loads),
        "wavefronts, stores": sum(site.wavefronts for site in stores),
        "sectors, loads": _sectors(report, "ld.", "wmma.load."),
        "sectors, stores": _sectors(report, "st.", "wmma.store."),
        "sectors, cp.async": _sectors(report, "cp.async."),
    }


def machine_instructions(opcode: str, shared: bool) -> tuple[str, int]:
    """The metric that a PTX instruction counts for, and how many machine instructions it becomes; empty for none."""
    parts = tuple(opcode.split("."))
    flops = mma_flops(parts)
    if flops:
        return "tensor instructions", max(1, flops // HMMA_FLOPS)
    if not shared:
        return "", 0
    if parts[:2] == ("wmma", "load"):
        return ("shared loads", 4) if parts[2] == "c" else ("ldmatrix", 1)
    if parts[:2] == ("wmma", "store"):
        return "shared stores", 4
    return {"ld": ("shared loads", 1), "st": ("shared stores", 1), "ldmatrix": ("ldmatrix", 1)}.get(parts[0], ("", 0))


def _shared(report: LaunchReport, *heads: str) -> list[InstructionCounts]:
    return [site for site in report.sites if site.wavefronts and site.opcode.startswith(tuple(f"{h}." for h in heads))]


def _sectors(report: LaunchReport, *heads: str) -> int:
    return sum(site.sectors for site in report.sites if site.opcode.startswith(heads) and "local" not in site.opcode)


def sass_values(kernel: Kernel, entry: str, report: LaunchReport) -> dict[str, float]:
    """The same by SASS, which follows ptxas where it merges or drops instructions.

    The instructions that a metric counts are compared place by place, a place being a source line with the calls
    through which it was inlined: where ptxas kept as many as expected of the PTX, they ran as often; where it kept half
    as many, half as often.
    """
    if find_disassembler() is None:
        return {}
    where = source_lines(kernel.binary.ptx)
    executions = {site.ptx_line: site.executions for site in report.sites}
    ran: defaultdict[str, defaultdict[Place, list[int]]] = defaultdict(lambda: defaultdict(list))
    for ins in parse(kernel.binary.ptx, entry).instructions:
        name, factor = machine_instructions(ins.opcode, "shared" in ins.opcode)
        if name:
            ran[name][where.get(ins.line, ())] += factor * [executions.get(ins.line, 0)]
    code = machine_code(disassemble(kernel.binary.cubin, calls=True), entry)
    return {
        metric.name: executed_as_kept(
            ran[metric.name], Counter(one.lines for one in code if not one.disabled and one.name in metric.sass)
        )
        for metric in METRICS
        if metric.sass
    }


def executed_as_kept(ran: Mapping[Place, Sequence[int]], kept: Mapping[Place, int]) -> float:
    """Executions of machine instructions.

    Args:
        ran: by place, how often each PTX instruction ran.
        kept: by place, how many machine instructions there are.
    """
    if any(place not in ran for place in kept):  # ptxas moved some to another place: lines are all that is left
        ran, kept = _by_line(ran, kept)
    return sum(sum(times) * kept.get(place, 0) / len(times) for place, times in ran.items())


def _by_line(
    ran: Mapping[Place, Sequence[int]], kept: Mapping[Place, int]
) -> tuple[Mapping[Place, Sequence[int]], Mapping[Place, int]]:
    lines: defaultdict[Place, list[int]] = defaultdict(list)
    for place, times in ran.items():
        lines[place[:1]] += times
    left: Counter[Place] = Counter()
    for place, count in kept.items():
        left[place[:1]] += count
    return lines, left


# --- the GPU's side ---------------------------------------------------------------------------------------------------


def available(ncu: Path) -> set[str]:
    """Metrics that ncu offers on this GPU, without their last part; empty where it does not say."""
    asked = subprocess.run([str(ncu), "--query-metrics"], capture_output=True, text=True, check=False, timeout=60)
    words = (line.split() for line in asked.stdout.splitlines())
    return {found[0] for found in words if found and "__" in found[0]}


def names_to_ask(known: set[str]) -> list[list[str]]:
    """What to ask the GPU for, one list per run: metrics that it has, all where it is not known.

    Bank conflicts go by themselves, so that ncu counts them and what arbitration adds to them in the same pass.
    """
    asked: list[list[str]] = [[], []]
    for counter in COUNTERS:
        asked[counter.name == ARBITRATION or counter.name.startswith("conflicts")] += counter.metrics
    return [[one for one in dict.fromkeys(names) if not known or one.removesuffix(".sum") in known] for names in asked]


def measure(ncu: Path, jobs: Sequence[Path], names: Sequence[str]) -> tuple[KernelCounters, ...]:
    """Runs jobs in one process under ncu.

    Raises:
        EvoEngineError: ncu measured nothing.
    """
    program = [sys.executable, str(Path(__file__).resolve()), "--launch", *map(str, jobs)]
    root = str(Path(__file__).resolve().parents[2])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    command = ncu_command(ncu, names, program)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NCU_LIMIT_S, env=env)
    found = parse_raw_page(done.stdout)
    if not found:
        raise EvoEngineError(f"ncu measured nothing: {trouble_in(done.stdout + done.stderr)}")
    return found


def hardware_values(runs: Sequence[KernelCounters]) -> dict[str, float]:
    """The GPU's side of each metric, and what arbitration added; those that it does not have are missing."""
    values = {name: value for run in runs for name, value in run.values.items()}
    found = {counter.name: counter.value(values) for counter in COUNTERS}
    return {name: value for name, value in found.items() if value is not None}


# --- the comparison ---------------------------------------------------------------------------------------------------


def difference(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Relative difference, None where the GPU did not say.

    The hardware counts an access as a conflict also where it waits for another client of the data banks, and says how
    often that happened, but not to whom. So conflicts may be fewer than its count by up to that number.
    """
    if name not in theirs:
        return None
    theirs_least = theirs[name] - (theirs.get(ARBITRATION, 0.0) if name.startswith("conflicts,") else 0.0)
    nearest = min(max(ours[name], theirs_least), theirs[name])
    return (ours[name] - nearest) / max(abs(nearest), 1.0)


def agrees(metric: Metric, ours: Counted, theirs: Mapping[str, float]) -> bool:
    """Whether a count is within the bound, as it is in PTX or as it follows ptxas."""
    sides = [ours.values] + ([{**ours.values, **ours.by_sass}] if metric.name in ours.by_sass else [])
    found = [difference(metric.name, side, theirs) for side in sides]
    return any(one is not None and abs(one) <= BOUND for one in found)


def tables(pairs: Sequence[tuple[Counted, Mapping[str, float]]]) -> tuple[str, bool]:
    """The page, and whether every required metric agrees."""
    lines = ["| counter | launches | median difference | worst | worst by SASS | within 2 % | required |"]
    lines += ["|---|" + "---:|" * 6]
    good = True
    for metric in METRICS:
        seen = [(ours, theirs) for ours, theirs in pairs if metric.name in theirs]
        required = "yes" if metric.required else "no"
        if not seen:
            lines.append(f"| {metric.name} | 0 | not reported | | | | {required} |")
            good = good and not metric.required
            continue
        plain = [difference(metric.name, ours.values, theirs) or 0.0 for ours, theirs in seen]
        sass = [
            difference(metric.name, {**ours.values, **ours.by_sass}, theirs) or 0.0
            for ours, theirs in seen
            if metric.name in ours.by_sass
        ]
        by_sass = f"{max(sass, key=abs):+.2%}" if sass else ""
        within = sum(agrees(metric, ours, theirs) for ours, theirs in seen)
        good = good and (not metric.required or within == len(seen))
        numbers = f"{median(plain):+.2%} | {max(plain, key=abs):+.2%} | {by_sass}"
        lines.append(f"| {metric.name} | {len(seen)} | {numbers} | {within} | {required} |")
    return "\n".join([*lines, "", *disagreements(pairs)]) + "\n", good


_HEADING: Final = 4
_WHY: Final = (
    "What is not required, and why it differs: `ptxas` merges, moves and drops instructions, so that all instructions",
    "together are fewer than in the PTX; conflicts of `cp.async`, and conflicts less arbitration, hold accesses that",
    "waited for another client of the data banks, differently in each run. docs/emulator.md names the metrics and",
    "explains each.",
)


def disagreements(pairs: Sequence[tuple[Counted, Mapping[str, float]]]) -> list[str]:
    """A table of the launches that are off in a required counter."""
    lines = ["Launches that differ by more than 2 % in a required counter:", ""]
    lines += ["| launch | counter | emulator | by SASS | hardware |", "|---|---|---:|---:|---:|"]
    for ours, theirs in pairs:
        for metric in METRICS:
            if metric.required and metric.name in theirs and not agrees(metric, ours, theirs):
                scaled = f"{ours.by_sass[metric.name]:,.0f}" if metric.name in ours.by_sass else ""
                counts = f"{ours.values[metric.name]:,.0f} | {scaled} | {theirs[metric.name]:,.0f}"
                lines.append(f"| {ours.case} {ours.entry} | {metric.name} | {counts} |")
    return lines if len(lines) > _HEADING else ["No launch differs by more than 2 % in a required counter.", "", *_WHY]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Emulator counters against Nsight Compute.")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--chunk", type=int, default=14, help="kernels in one process under ncu")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path, help="all counts of both sides")
    parser.add_argument("--emulate-only", action="store_true")
    parser.add_argument("--launch", nargs="+", type=Path, help="internal: launches jobs")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.launch:
        for file in options.launch:
            launch(decode(LaunchJob, file.read_bytes()))
        return 0
    target = get_target(options.target)
    cases = choose_cases(target, options.count, options.seed)
    with ProcessPoolExecutor(options.workers) as pool:
        prepared = [one for one in pool.map(try_to_prepare, cases, [target] * len(cases)) if one is not None]
    if options.emulate_only:
        for found, _ in prepared:
            for counted in found:
                print(counted.case, counted.entry, dict(counted.values), dict(counted.by_sass))
        return 0
    ncu = require_ncu()
    asked = names_to_ask(available(ncu))
    pairs: list[tuple[Counted, Mapping[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="evoengine-") as folder:
        for start in range(0, len(prepared), options.chunk):
            part = prepared[start : start + options.chunk]
            files = [Path(folder) / f"job{start + number}" for number in range(len(part))]
            for file, (_, job) in zip(files, part, strict=True):
                file.write_bytes(job)
            measured = [measure(ncu, files, names) for names in asked]
            expected = [counted for found, _ in part for counted in found]
            for run in measured:
                if len(run) != len(expected):
                    raise EvoEngineError(f"ncu saw {len(run)} launches, {len(expected)} were made")
            pairs += [(ours, hardware_values(runs)) for ours, *runs in zip(expected, *measured, strict=True)]
            print(f"{len(pairs)} launches measured", file=sys.stderr)
    page, good = tables(pairs)
    print(page)
    if options.json:
        options.json.write_text(
            json.dumps([{**dataclasses.asdict(ours), "hardware": theirs} for ours, theirs in pairs])
        )
    if options.out:
        head = f"# The emulator's counters against Nsight Compute's, {target.marketing_name}\n\n"
        options.out.write_text(
            f"{head}{len(prepared)} configs; `scripts/measure/check_counters.py --seed {options.seed}`\n\n{page}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
