"""``profile``: shows why one stored kernel is fast or slow, with counters by source line, without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.echo import echo_lines
from evoengine.cli.output.verbosity import note, warn
from evoengine.cli.verbs.profile_ncu import profile_document, show_hardware_counters
from evoengine.costmodel.device import CallProfile, EmulatorDevice
from evoengine.costmodel.hotspots import LineCounts, bottleneck, findings, line_counts
from evoengine.device.tools.bottleneck import diagnose, longest
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.engine.options.verbs import ProfileOptions
from evoengine.engine.rows.kernels import rebuild_row, target_of
from evoengine.engine.rows.queries import find_record
from evoengine.errors import UsageError
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import occupancy
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import Record
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.target import Target


def run_profile(options: ProfileOptions, *, json_output: bool) -> None:
    """Prints one row's counters, PTX, SASS or hardware counters.

    Raises:
        UsageError: The row has no source, its template no longer exists, or JSON is asked for PTX or machine code.
        MissingDependencyError: A tool is not installed.
        LaunchError: The kernel does not run on the emulator.
    """
    if json_output and options.view in ("ptx", "sass"):
        raise UsageError(f"--{options.view} prints text: leave --json out")
    with Leaderboard(database_url(options.db), create=False) as board:
        found = find_record(board, options.choice, options.db)
        note(found.note)
        record = found.record
        if options.view == "ncu":
            build = partial(rebuild_row, record, options.space_file, warn, trust_source=options.trust_source)
            show_hardware_counters(board, record, build, again=options.again, json_output=json_output)
            return
    kernel = rebuild_row(record, options.space_file, warn, trust_source=options.trust_source)
    if options.view == "ptx":
        echo_lines(kernel.binary.ptx)
    elif options.view == "sass":
        from evoengine.kernel.compile.disassembly import disassemble

        echo_lines(disassemble(kernel.binary.cubin))
    else:
        target, problem = target_of(record), record.study.key.problem
        call = EmulatorDevice(target, record.row.arch, counters=True).load(kernel).profile(problem)
        profile = _Profile(record, kernel, target, problem, call)
        if json_output:
            print_json(profile.document())
        else:
            _print(profile, options.lines)


@dataclass(frozen=True)
class _Profile:
    """The counters of one row's kernel."""

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
        """Entry point of each launch."""
        return tuple(step.entry for step in self.kernel.source.launch.steps(self.call.ran))

    def text_of(self, counts: LineCounts) -> str:
        """The source text of a line; for a line of a header its file and number."""
        if not counts.line:
            return "(no source line)"
        if counts.file.strip("/") != f"{self.record.row.family}.cu":
            return f"({counts.file.rpartition('/')[2]}:{counts.line})"
        lines = self.kernel.source.text.splitlines()
        return lines[counts.line - 1].strip() if counts.line <= len(lines) else ""


def _print(profile: _Profile, lines: int) -> None:
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


def _summary(profile: _Profile) -> list[str]:
    row, prediction = profile.record.row, profile.call.prediction
    measured = "" if row.predicted or row.median_us is None else f", measured {row.median_us:.2f} us on {row.device}"
    predicted = f"predicted {prediction.us:.2f} us on {profile.target.marketing_name}"
    resources, limits = profile.kernel.binary.resources, occupancy(profile.kernel.binary.resources, profile.target)
    cause = bottleneck(prediction.terms)
    ctas = f"{limits.blocks_per_sm} CTA{'s' if limits.blocks_per_sm > 1 else ''}"
    fits = f"{ctas}, {limits.warps_per_sm} warps per SM, limited by {limits.limiter}"
    needs = f"{resources.registers} registers, {resources.smem_bytes:,} bytes of shared memory"
    sentences = [
        f"row {row.id}: {row.family}, {row.problem}, {row.arch}; {predicted} by {prediction.method}{measured}",
        f"{cause[0].upper()}{cause[1:]}.",
        f"Predicted time by part, in us: {_terms(prediction.terms)}.",
        f"Occupancy: {fits}; {needs}, {resources.spill_bytes} bytes spilled.",
    ]
    if profile.record.profile is not None:
        counted = profile.record.profile
        meaning = " ".join(diagnose(longest(counted.launches)).sentences)
        sentences.append(f"Counted on {counted.gpu} by {counted.tool}: {meaning}")
    if profile.call.ran != profile.problem:
        sentences.append(f"Counters are for a representative part of the problem: {profile.call.ran.key}.")
    return sentences


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


def _line_table(profile: _Profile, report: LaunchReport, most: int) -> Table:
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
