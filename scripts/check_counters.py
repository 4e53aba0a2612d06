#!/usr/bin/env python3
"""Compares the emulator's counters with Nsight Compute's, kernel by kernel, on the GPU at hand.

    .venv/bin/python scripts/check_counters.py --count 40 --out docs/results/counters-h200.md
    .venv/bin/python scripts/check_counters.py --count 6 --emulate-only        # without a GPU: what would be compared

Configs of every family are drawn, the good ones that the search spaces name first. Each is compiled for the GPU, run on
the emulator with counters, and run once under ncu; many kernels share one process there, and all metrics one run. A GPU
that lacks a metric is asked for the next of its names. Where nvdisasm is at hand, a third column scales the emulator's
count of each source line by how many machine instructions ptxas made of its PTX instructions. The exit status is 1
where a required counter differs by more than the bound both ways.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from evoengine.cli.families import choose_families
from evoengine.device.launcher import LaunchJob, launch
from evoengine.device.ncu import KernelCounters, ncu_command, parse_raw_page, require_ncu, trouble_in
from evoengine.device.wire import decode, encode
from evoengine.emulator.device import EmulatorDevice
from evoengine.emulator.parser import parse
from evoengine.emulator.report import LaunchReport, SiteCounts, mma_flops
from evoengine.errors import CandidateError, EvoEngineError
from evoengine.kernel.artifact import Kernel
from evoengine.kernel.compiler import Compiler
from evoengine.kernel.disassembly import disassemble, find_disassembler, opcodes_by_line
from evoengine.kernel.template import TemplateLibrary
from evoengine.model import Config, Problem, parse_problem
from evoengine.parity.inputs import make_inputs
from evoengine.space.loader import find_space
from evoengine.space.locate import data_dir
from evoengine.target import Target, get_target

BOUND: Final = 0.02
NCU_LIMIT_S: Final = 230.0
PROBLEMS: Final = (parse_problem("1x4x256x64"), parse_problem("1x2x256x64", causal=True))
HMMA_FLOPS: Final = 4096
"""Of one HMMA.16816, the machine instruction of m16n8k16."""


@dataclass(frozen=True)
class Metric:
    """One thing that both sides count."""

    name: str
    required: bool
    """Whether it must agree within the bound."""
    hardware: tuple[tuple[str, ...], ...]
    """Names to be added up; the first of the alternatives that the GPU has counts."""
    sass: tuple[str, ...] = ()
    """Machine instructions that it counts, where it counts instructions."""


def _l1(kind: str, *operations: str) -> tuple[str, ...]:
    return tuple(f"l1tex__{kind}_mem_shared_op_{operation}.sum" for operation in operations)


METRICS: Final = (
    Metric("instructions", False, (("smsp__inst_executed.sum",),)),
    Metric(
        "tensor instructions",
        True,
        (
            ("smsp__inst_executed_pipe_tensor_op_hmma.sum",),
            ("sm__inst_executed_pipe_tensor_op_hmma.sum",),
            ("smsp__inst_executed_pipe_tensor.sum",),
            ("sm__inst_executed_pipe_tensor.sum",),
        ),
        ("HMMA",),
    ),
    Metric("shared loads", True, (("smsp__inst_executed_op_shared_ld.sum",),), ("LDS",)),
    Metric("ldmatrix", True, (("smsp__inst_executed_op_ldsm.sum",),), ("LDSM",)),
    Metric("shared stores", False, (("smsp__inst_executed_op_shared_st.sum",),), ("STS",)),
    Metric(
        "conflicts, loads",
        True,
        (
            (
                "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
            ),
            _l1("data_bank_conflicts_pipe_lsu", "ld"),
        ),
    ),
    Metric(
        "conflicts, stores",
        True,
        (
            ("sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",),
            _l1("data_bank_conflicts_pipe_lsu", "st"),
        ),
    ),
    Metric("conflicts, cp.async", False, (_l1("data_bank_conflicts_pipe_lsu", "ldgsts"),)),
    Metric("wavefronts, loads", False, (_l1("data_pipe_lsu_wavefronts", "ld"),)),
    Metric("wavefronts, stores", False, (_l1("data_pipe_lsu_wavefronts", "st"),)),
    Metric("sectors, loads", True, (("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),)),
    Metric("sectors, stores", True, (("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),)),
    Metric(
        "sectors, cp.async",
        True,
        (
            (
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
            ),
            ("l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",),
        ),
    ),
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


def _shared(report: LaunchReport, *heads: str) -> list[SiteCounts]:
    return [site for site in report.sites if site.wavefronts and site.opcode.startswith(tuple(f"{h}." for h in heads))]


def _sectors(report: LaunchReport, *heads: str) -> int:
    return sum(site.sectors for site in report.sites if site.opcode.startswith(heads) and "local" not in site.opcode)


def sass_values(kernel: Kernel, entry: str, report: LaunchReport) -> dict[str, float]:
    """The same by SASS: each source line's executions times its machine instructions over those expected of its PTX.

    This follows ptxas where it merges or drops instructions; where it copies code, as for an unrolled loop, the copies
    count as if each ran as often as the original.
    """
    if find_disassembler() is None:
        return {}
    by_line = opcodes_by_line(disassemble(kernel.binary.cubin), entry)
    opcodes = {metric.name: metric.sass for metric in METRICS if metric.sass}
    executed: dict[str, Counter[int]] = {name: Counter() for name in opcodes}
    expected: dict[str, Counter[int]] = {name: Counter() for name in opcodes}
    for site in report.sites:
        name, factor = machine_instructions(site.opcode, bool(site.wavefronts))
        if name:
            executed[name][site.source_line] += site.executions * factor
    for ins in parse(kernel.binary.ptx, entry).instructions:
        name, factor = machine_instructions(ins.opcode, "shared" in ins.opcode)
        if name and ins.source:
            expected[name][ins.source[1]] += factor
    return {
        name: sum(
            count * sum(by_line.get(line, Counter())[opcode] for opcode in opcodes[name]) / expected[name][line]
            for line, count in executed[name].items()
            if expected[name][line]
        )
        for name in opcodes
    }


# --- the GPU's side ---------------------------------------------------------------------------------------------------


def available(ncu: Path) -> set[str]:
    """Metrics that ncu offers on this GPU, without their last part; empty where it does not say."""
    asked = subprocess.run([str(ncu), "--query-metrics"], capture_output=True, text=True, check=False, timeout=60)
    words = (line.split() for line in asked.stdout.splitlines())
    return {found[0] for found in words if found and "__" in found[0]}


def names_to_ask(known: set[str]) -> list[str]:
    """All names of all metrics that the GPU has; all names where it is not known."""
    names = dict.fromkeys(name for metric in METRICS for group in metric.hardware for name in group)
    return [name for name in names if not known or name.removesuffix(".sum") in known]


def measure(ncu: Path, jobs: Sequence[Path], names: Sequence[str]) -> tuple[KernelCounters, ...]:
    """Runs jobs in one process under ncu.

    Raises:
        EvoEngineError: ncu measured nothing.
    """
    program = [sys.executable, str(Path(__file__).resolve()), "--launch", *map(str, jobs)]
    root = str(Path(__file__).resolve().parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    command = ncu_command(ncu, names, program)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NCU_LIMIT_S, env=env)
    found = parse_raw_page(done.stdout)
    if not found:
        raise EvoEngineError(f"ncu measured nothing: {trouble_in(done.stdout + done.stderr)}")
    return found


def hardware_values(counters: KernelCounters) -> dict[str, float]:
    """The GPU's side of each metric, by the first of its alternatives that was reported whole; others are missing."""
    values = {}
    for metric in METRICS:
        whole = [names for names in metric.hardware if all(name in counters.values for name in names)]
        if whole:
            values[metric.name] = sum(counters.values[name] for name in whole[0])
    return values


# --- the comparison ---------------------------------------------------------------------------------------------------


def difference(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Relative difference, None where the GPU did not say.

    Conflicts are held against themselves, or, where there are few, against a fiftieth of the wavefronts of their kind:
    the hardware also counts a few that come from several warps at once.
    """
    if name not in theirs:
        return None
    floor = 1.0
    if name.startswith("conflicts"):
        wavefronts = name.replace("conflicts", "wavefronts")
        floor = max(1.0, theirs.get(wavefronts, ours.get(wavefronts, 0.0)) / 50)
    return (ours[name] - theirs[name]) / max(abs(theirs[name]), floor)


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
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Emulator counters against Nsight Compute.")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--chunk", type=int, default=14, help="kernels in one process under ncu")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
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
    names = names_to_ask(available(ncu))
    pairs: list[tuple[Counted, Mapping[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="evoengine-") as folder:
        for start in range(0, len(prepared), options.chunk):
            part = prepared[start : start + options.chunk]
            files = [Path(folder) / f"job{start + number}" for number in range(len(part))]
            for file, (_, job) in zip(files, part, strict=True):
                file.write_bytes(job)
            measured = measure(ncu, files, names)
            expected = [counted for found, _ in part for counted in found]
            if len(measured) != len(expected):
                raise EvoEngineError(f"ncu saw {len(measured)} launches, {len(expected)} were made")
            pairs += [(ours, hardware_values(one)) for ours, one in zip(expected, measured, strict=True)]
            print(f"{len(pairs)} launches measured", file=sys.stderr)
    page, good = tables(pairs)
    print(page)
    if options.out:
        head = f"# The emulator's counters against Nsight Compute's, {target.marketing_name}\n\n"
        options.out.write_text(
            f"{head}{len(prepared)} configs; `scripts/check_counters.py --seed {options.seed}`\n\n{page}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
