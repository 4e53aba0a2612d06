"""``profile``: why one stored kernel is fast or slow: counters by source line, without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.verbs.export import rendered_again
from evoengine.cli.verbs.profile_ncu import profile_document, show_hardware_counters
from evoengine.costmodel.device import CallProfile, EmulatorDevice
from evoengine.costmodel.hotspots import LineCounts, bottleneck, findings, line_counts
from evoengine.device.tools.bottleneck import diagnose, longest
from evoengine.emulator.counters.report import LaunchReport, Pipe
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import occupancy
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.target import TARGETS, Target, get_target, target_for_gpu

View = Literal["counters", "ptx", "sass", "ncu"]


@dataclass(frozen=True)
class ProfileRequest:
    """What to show of which row."""

    row_id: int
    db: str
    view: View = "counters"
    lines: int = 12
    """Lines of the table of the most expensive ones."""
    space_file: Path | None = None
    """What the search was given with ``--space``; None for the family's own."""
    again: bool = False
    """Ask the hardware's counters even if the row has some."""


def run_profile(request: ProfileRequest, *, json_output: bool) -> None:
    """Shows one row's counters, PTX, SASS or hardware counters.

    Raises:
        UsageError: the row has no source, or its template is gone.
        MissingDependencyError: a tool is not installed.
        LaunchError: the kernel does not run on the emulator.
    """
    with Leaderboard(database_url(request.db), create=False) as board:
        record = board.get(request.row_id)
        if request.view == "ncu":
            build = partial(rebuild, record, request.space_file)
            show_hardware_counters(board, record, build, again=request.again, json_output=json_output)
            return
    kernel = rebuild(record, request.space_file)
    if request.view == "ptx":
        typer.echo(kernel.binary.ptx)
    elif request.view == "sass":
        from evoengine.kernel.compile.disassembly import disassemble

        typer.echo(disassemble(kernel.binary.cubin))
    else:
        target, problem = target_of(record), record.study.key.problem
        profile = EmulatorDevice(target, record.row.arch, counters=True).load(kernel).profile(problem)
        shown = Profile(record, kernel, target, problem, profile)
        if json_output:
            print_json(shown.document())
        else:
            _print(shown, request.lines)


def rebuild(record: Record, space_file: Path | None = None) -> Kernel:
    """The kernel of a row, compiled anew from the stored source, with line information.

    Raises:
        UsageError: the row has no source, or its template no longer renders.
    """
    text = record.evaluation.source
    if not text:
        raise UsageError(f"row {record.row.id} ended as {record.row.status.value} and has no source to profile")
    rendered = rendered_again(record, space_file)
    if rendered.text != text:
        message = f"the template changed since row {record.row.id} was evaluated: its own source, the new launch"
        typer.echo(f"warning: {message}", err=True)
    source = dataclasses.replace(rendered, text=text)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, record.row.arch))


def target_of(record: Record) -> Target:
    """The data sheet of the row's GPU; that of an L4 where the GPU is not known."""
    known = {target.marketing_name: target for target in TARGETS.values()}
    gpu = known.get(record.row.device) or target_for_gpu(record.row.device) or get_target("l4")
    return gpu.compiled_for(record.row.arch)


@dataclass(frozen=True)
class Profile:
    """Everything that is shown."""

    record: Record
    kernel: Kernel
    target: Target
    problem: Problem
    call: CallProfile

    def document(self) -> dict[str, Any]:
        """The profile as a JSON object."""
        row, prediction = self.record.row, self.call.prediction
        return {
            "id": row.id,
            "problem": row.problem,
            "family": row.family,
            "config": dict(row.config),
            "device": row.device,
            "arch": row.arch,
            "measured_us": None if row.predicted else row.median_us,
            "predicted_us": prediction.us,
            "predicted_for": self.target.marketing_name,
            "method": prediction.method,
            "terms_us": dict(prediction.terms),
            "bottleneck": bottleneck(prediction.terms),
            "occupancy": dataclasses.asdict(occupancy(self.kernel.binary.resources, self.target)),
            "resources": dataclasses.asdict(self.kernel.binary.resources),
            "counted_on": self.call.ran.key,
            "launches": [self._launch(number) for number in range(len(self.call.reports))],
            "hardware": None if self.record.profile is None else profile_document(self.record.profile),
        }

    def _launch(self, number: int) -> dict[str, Any]:
        report = self.call.reports[number]
        counters = {
            field.name: getattr(report, field.name)
            for field in dataclasses.fields(report)
            if isinstance(getattr(report, field.name), int | float)
        }
        return {
            "entry": self.entries[number],
            **counters,
            "pipes": {pipe.value: count for pipe, count in report.pipes.items()},
            "findings": findings(report),
            "lines": [
                {
                    **dataclasses.asdict(counts),
                    "pipes": {pipe.value: count for pipe, count in counts.pipes.items()},
                    "text": self.text_of(counts),
                }
                for counts in line_counts(report.sites, self.target)
            ],
            "sites": [
                {**dataclasses.asdict(site), "pipe": site.pipe.value, "conflicts": site.conflicts}
                for site in report.sites
            ],
        }

    @property
    def entries(self) -> tuple[str, ...]:
        """The entry of each launch."""
        return tuple(step.entry for step in self.kernel.source.launch.steps(self.call.ran))

    def text_of(self, counts: LineCounts) -> str:
        """The source text of a line; the file's name for a header's."""
        if not counts.line:
            return "(no source line)"
        if counts.file.strip("/") != f"{self.record.row.family}.cu":
            return f"({counts.file.rpartition('/')[2]}:{counts.line})"
        lines = self.kernel.source.text.splitlines()
        return lines[counts.line - 1].strip() if counts.line <= len(lines) else ""


def _print(profile: Profile, lines: int) -> None:
    console = make_console()
    for sentence in _summary(profile):
        console.print(sentence, markup=False)
    for entry, report in zip(profile.entries, profile.call.reports, strict=True):
        title = f"{entry}: {report.ctas} CTAs of {report.warps // report.ctas} warps"
        console.print(f"\n{title}", style="bold", markup=False)
        for sentence in findings(report):
            console.print(sentence, markup=False)
        console.print()
        print_table(console, _pipe_table(report))
        console.print()
        print_table(console, _line_table(profile, report, lines))


def _summary(profile: Profile) -> list[str]:
    row, prediction = profile.record.row, profile.call.prediction
    measured = "" if row.predicted or row.median_us is None else f", measured {row.median_us:.2f} us on {row.device}"
    predicted = f"predicted {prediction.us:.2f} us on {profile.target.marketing_name}"
    resources, room = profile.kernel.binary.resources, occupancy(profile.kernel.binary.resources, profile.target)
    cause = bottleneck(prediction.terms)
    ctas = f"{room.blocks_per_sm} CTA{'s' if room.blocks_per_sm > 1 else ''}"
    fits = f"{ctas}, {room.warps_per_sm} warps per SM, limited by {room.limiter}"
    needs = f"{resources.registers} registers, {resources.smem_bytes:,} bytes of shared memory"
    said = [
        f"row {row.id}: {row.family}, {row.problem}, {row.arch}; {predicted} by {prediction.method}{measured}",
        f"{cause[0].upper()}{cause[1:]}.",
        f"Parts, in us: {_terms(prediction.terms)}.",
        f"Occupancy: {fits}; {needs}, {resources.spill_bytes} bytes spilled.",
    ]
    if profile.record.profile is not None:
        counted = profile.record.profile
        meaning = " ".join(diagnose(longest(counted.launches)).sentences)
        said.append(f"Counted on {counted.gpu} by {counted.tool}: {meaning}")
    if profile.call.ran != profile.problem:
        said.append(f"Counters are those of a part of the problem that stands for all of it: {profile.call.ran.key}.")
    return said


def _terms(terms: Mapping[str, float]) -> str:
    largest = sorted(terms.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {us:.2f}" for name, us in largest if us >= 0.005)


def _table(columns: Sequence[tuple[str, Literal["left", "right"]]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _pipe_table(report: LaunchReport) -> Table:
    table = _table([("pipe", "left"), ("warp instructions", "right"), ("share", "right"), ("per warp", "right")])
    for pipe in sorted(Pipe, key=lambda pipe: -report.pipes.get(pipe, 0)):
        count = report.pipes.get(pipe, 0)
        if count:
            share = f"{count / report.warp_instructions:.1%}"
            table.add_row(pipe.value, f"{count:,}", share, f"{count / report.warps:.1f}")
    return table


def _line_table(profile: Profile, report: LaunchReport, most: int) -> Table:
    names = ("line", "cost", "instructions", "wavefronts", "conflicts", "sectors", "barriers", "splits")
    table = _table([*((name, "right") for name in names), ("source", "left")])
    lines = line_counts(report.sites, profile.target)
    total = sum(counts.cost for counts in lines) or 1.0
    for counts in lines[:most]:
        memory = (counts.wavefronts, counts.conflicts, counts.sectors)
        numbers = (counts.executions, *memory, counts.barriers, counts.split_warps)
        shown = (f"{number:,}" if number else "" for number in numbers)
        table.add_row(str(counts.line or "-"), f"{counts.cost / total:.1%}", *shown, profile.text_of(counts))
    return table
