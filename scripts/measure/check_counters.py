#!/usr/bin/env python3
"""Compares the emulator's counters with Nsight Compute's, kernel by kernel, on this GPU.

    python scripts/measure/check_counters.py --count 40 --out docs/results/counters-h200.md
    python scripts/measure/check_counters.py --count 6 --emulate-only        # without a GPU: the emulator's side only

The sample holds the start configs of every family and random ones. Each is compiled for the GPU, executed on the
emulator with counters, and executed twice under ncu: once for bank conflicts, once for all other metrics; many kernels
share one process under ncu. evoengine/device/tools/hardware_counters.py maps counters to ncu's metrics. With nvdisasm
installed, a third column scales the emulator's count of each source line by the ratio of machine instructions to PTX
instructions. The exit code is 1 if a required counter exceeds the bound with and without this scaling.
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

import common
import numpy as np

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.tools.hardware_counters import ARBITRATION, COUNTERS, HardwareCounter
from evoengine.device.tools.launcher import LaunchJob, launch, open_gpu
from evoengine.device.tools.ncu import ncu_command, parse_raw_page, require_ncu, trouble_in
from evoengine.device.workers.wire import decode, encode
from evoengine.emulator.counters.report import InstructionCounts, LaunchReport
from evoengine.emulator.ptx.parser import parse
from evoengine.emulator.ptx.pipes import mma_flops
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
from evoengine.space.loader import find_space
from evoengine.target import Target, get_target

BOUND: Final = 0.02
NCU_LIMIT_S: Final = 230.0
PROBLEMS: Final = (
    parse_problem("1x4x256x64"),
    parse_problem("1x2x256x64", causal=True),
    parse_problem("1x2x200x128"),  # not a multiple of any tile
)
SourceSite = tuple[int, ...]
"""Source line, and the lines of the calls through which it was inlined."""
HMMA_FLOPS: Final = 4096
"""Operations of one HMMA.16816, the machine instruction of m16n8k16."""


@dataclass(frozen=True)
class Metric:
    """A quantity that both sides count, named after its hardware counter."""

    name: str
    required: bool
    """Whether it must agree within the bound."""
    sass: tuple[str, ...] = ()
    """Machine instructions that it counts, if it counts instructions."""

    @property
    def counter(self) -> HardwareCounter:
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
    """One kernel to compare."""

    name: str
    config: Config
    problem: Problem


@dataclass(frozen=True)
class Counted:
    """The emulator's counts of one launch, and the counts scaled by SASS if a disassembler is installed."""

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
    """Calls :func:`prepare`; prints the reason and returns None for a kernel that does not compile or run."""
    try:
        return prepare(case, target)
    except CandidateError as error:
        print(f"left out: {case.name}: {error}", file=sys.stderr)
        return None


def prepare(case: Case, target: Target) -> Prepared:
    """Runs one kernel on the emulator; returns its counts and the encoded job that launches it on the GPU."""
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
        Counted(case.name, entry, emulator_values(report), sass_values(kernel, entry, report))
        for entry, report in zip(entries, reports, strict=True)
    )
    return found, encode(LaunchJob.of(kernel, inputs))


def emulator_values(report: LaunchReport) -> dict[str, float]:
    """The emulator's value of each metric, in machine instructions; a ``wmma`` instruction becomes several."""
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
    """The metric that a PTX instruction counts for, and the number of its machine instructions; empty for none."""
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
    """Metric values scaled by SASS, since ptxas merges and drops instructions.

    The count of each source site is multiplied by the ratio of its machine instructions to those expected from the PTX.
    """
    if find_disassembler() is None:
        return {}
    where = source_lines(kernel.binary.ptx)
    executions = {site.ptx_line: site.executions for site in report.sites}
    ran: defaultdict[str, defaultdict[SourceSite, list[int]]] = defaultdict(lambda: defaultdict(list))
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


def executed_as_kept(ran: Mapping[SourceSite, Sequence[int]], kept: Mapping[SourceSite, int]) -> float:
    """Executions of machine instructions.

    Args:
        ran: Executions of each PTX instruction, by source site.
        kept: Number of machine instructions, by source site.
    """
    if any(site not in ran for site in kept):  # ptxas moved some to another site: compare by line only
        ran, kept = _by_line(ran, kept)
    return sum(sum(times) * kept.get(site, 0) / len(times) for site, times in ran.items())


def _by_line(
    ran: Mapping[SourceSite, Sequence[int]], kept: Mapping[SourceSite, int]
) -> tuple[Mapping[SourceSite, Sequence[int]], Mapping[SourceSite, int]]:
    lines: defaultdict[SourceSite, list[int]] = defaultdict(list)
    for site, times in ran.items():
        lines[site[:1]] += times
    left: Counter[SourceSite] = Counter()
    for site, count in kept.items():
        left[site[:1]] += count
    return lines, left


# --- the GPU's side ---------------------------------------------------------------------------------------------------


def available(ncu: Path) -> set[str]:
    """Metrics that ncu offers on this GPU, without their suffixes; empty if ncu does not list them."""
    asked = subprocess.run([str(ncu), "--query-metrics"], capture_output=True, text=True, check=False, timeout=60)
    words = (line.split() for line in asked.stdout.splitlines())
    return {found[0] for found in words if found and "__" in found[0]}


def names_to_ask(known: set[str]) -> list[list[str]]:
    """Metrics to collect, one list per run: those in `known`, or all if `known` is empty.

    Bank conflicts have their own run, so that ncu counts conflicts and arbitration in the same pass.
    """
    asked: list[list[str]] = [[], []]
    for counter in COUNTERS:
        asked[counter.name == ARBITRATION or counter.name.startswith("conflicts")] += counter.metrics
    return [[one for one in dict.fromkeys(names) if not known or one.removesuffix(".sum") in known] for names in asked]


def measure(ncu: Path, jobs: Sequence[Path], names: Sequence[str]) -> tuple[KernelCounters, ...]:
    """Runs jobs in one process under ncu.

    Raises:
        EvoEngineError: ncu reported no kernel.
    """
    program = [sys.executable, str(Path(__file__).resolve()), "--launch", *map(str, jobs)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(common.ROOT), os.environ.get("PYTHONPATH"))))}
    command = ncu_command(ncu, names, program)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NCU_LIMIT_S, env=env)
    found = parse_raw_page(done.stdout)
    if not found:
        raise EvoEngineError(f"ncu measured nothing: {trouble_in(done.stdout + done.stderr)}")
    return found


def hardware_values(runs: Sequence[KernelCounters]) -> dict[str, float]:
    """The GPU's value of each metric, and of arbitration; metrics that the GPU does not have are missing."""
    values = {name: value for run in runs for name, value in run.values.items()}
    found = {counter.name: counter.value(values) for counter in COUNTERS}
    return {name: value for name, value in found.items() if value is not None}


# --- the comparison ---------------------------------------------------------------------------------------------------


def difference(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Relative difference; None for a metric that the GPU did not report.

    The hardware also counts an access as a conflict when it waits for another client of the data banks (arbitration).
    It reports only the total of these, so the emulator's conflicts may be lower by up to this number.
    """
    if name not in theirs:
        return None
    theirs_least = theirs[name] - (theirs.get(ARBITRATION, 0.0) if name.startswith("conflicts,") else 0.0)
    nearest = min(max(ours[name], theirs_least), theirs[name])
    return (ours[name] - nearest) / max(abs(nearest), 1.0)


def agrees(metric: Metric, ours: Counted, theirs: Mapping[str, float]) -> bool:
    """Whether a count is within the bound, either as counted or scaled by SASS."""
    sides = [ours.values] + ([{**ours.values, **ours.by_sass}] if metric.name in ours.by_sass else [])
    found = [difference(metric.name, side, theirs) for side in sides]
    return any(one is not None and abs(one) <= BOUND for one in found)


def tables(pairs: Sequence[tuple[Counted, Mapping[str, float]]]) -> tuple[str, bool]:
    """The table as Markdown, and whether every required metric agrees."""
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
    "Why the other counters differ: `ptxas` merges, moves and drops instructions, so their total is lower than in PTX;",
    "conflicts of `cp.async`, and conflicts less arbitration, include accesses that waited for another client of the",
    "data banks, which varies between runs. docs/emulator.md explains each metric.",
)


def disagreements(pairs: Sequence[tuple[Counted, Mapping[str, float]]]) -> list[str]:
    """Table of the launches that differ in a required counter."""
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
    parser = common.parser(__doc__)
    parser.add_argument("--count", type=int, default=40, help="Minimum number of kernels.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument("--target", default="h200", help="Data sheet of this GPU.")
    parser.add_argument("--chunk", type=int, default=14, help="Kernels per process under ncu.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="Emulator processes.")
    parser.add_argument("--out", type=Path, help="File to write the page to.")
    parser.add_argument("--json", type=Path, help="File to write all counts to.")
    parser.add_argument("--emulate-only", action="store_true", help="Print the emulator's counts; needs no GPU.")
    parser.add_argument("--launch", nargs="+", type=Path, help="Internal: launch these jobs.")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.launch:
        device = open_gpu()
        for file in options.launch:
            launch(decode(LaunchJob, file.read_bytes()), device)
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
                    raise EvoEngineError(f"ncu reported {len(run)} of {len(expected)} launches")
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
    common.run(main)
