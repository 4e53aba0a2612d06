"""The result of a comparison and what is derived from it: rates, ratios, table and page."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from evoengine.bench.roofline_floor import floor_us
from evoengine.documents import escaping
from evoengine.model import Problem
from evoengine.statistics import median_interval
from evoengine.target import Target

HEADINGS: Final = (
    "kernel", "µs", "95 % CI", "TFLOP/s", "roofline", "max error", "host µs", "vs ours", "note",
)  # fmt: skip
"""Columns of the table, the same on the terminal and on the page."""


class PeerStatus(enum.Enum):
    """Outcome of one kernel of a comparison."""

    OK = "ok"
    WRONG = "wrong"
    """Timed, but its output fails the check against fp64."""
    UNAVAILABLE = "unavailable"
    """Not installed, or the problem is not supported."""
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """One kernel of a comparison, as measured."""

    name: str
    outcome: PeerStatus
    note: str = ""
    """Reason why the kernel has no time or is wrong; otherwise a remark such as its version."""
    samples_us: tuple[float, ...] = ()
    max_error: float | None = None
    """Largest absolute difference to fp64."""
    host_us: float | None = None
    """Host time of one eager call."""
    ours: bool = False
    prepare_s: float = 0.0
    """Wall time to load, compile, tune and check the kernel in a process of its own."""


@dataclass(frozen=True)
class ComparisonRow:
    """One line of the table; None where a value is missing."""

    name: str
    ours: bool
    outcome: str
    median_us: float | None
    low_us: float | None
    """Lower end of the 95 % interval of the median."""
    high_us: float | None
    tflops: float | None
    roofline_share: float | None
    """Roofline time divided by measured time."""
    max_error: float | None
    host_us: float | None
    ratio_to_ours: float | None
    """Time of this kernel divided by ours; above 1 ours is faster."""
    note: str
    prepare_s: float
    """Wall time to load, compile, tune and check it in a process of its own."""


@dataclass(frozen=True)
class Comparison:
    """All data of the page."""

    problem: str
    device: str
    versions: tuple[tuple[str, str], ...]
    """Driver, torch and the like."""
    method: str
    """Name of the objective: ``graph-warm`` or ``graph-cold``."""
    calls: int
    samples: int
    tolerance: float
    """Largest absolute error that passes."""
    roofline_us: float
    rows: tuple[ComparisonRow, ...]
    config: str = ""
    """Family and tunables of our kernel; empty if there is none."""

    @property
    def ours(self) -> ComparisonRow | None:
        """Our row if it was timed and is correct."""
        return next((row for row in self.rows if row.ours and row.outcome == PeerStatus.OK.value), None)

    @property
    def best_peer(self) -> ComparisonRow | None:
        """The fastest peer whose output is correct."""
        peers = [row for row in self.rows if not row.ours and row.outcome == PeerStatus.OK.value]
        return min(peers, key=lambda row: row.median_us or float("inf"), default=None)

    @property
    def ours_over_best_peer(self) -> float | None:
        """Our time divided by that of the best peer; below 1 ours is faster."""
        ours, best = self.ours, self.best_peer
        if ours is None or best is None or not ours.median_us or not best.median_us:
            return None
        return ours.median_us / best.median_us

    @property
    def verdict(self) -> str:
        """One sentence that compares ours with the best peer."""
        best, ratio = self.best_peer, self.ours_over_best_peer
        if best is None or best.median_us is None:
            return "no peer was timed"
        peer = f"the best peer is {best.name} with {best.median_us:.2f} µs"
        return peer if ratio is None else f"{peer}; ours needs {ratio:.3f} of its time ({1 / ratio:.2f}x as fast)"


def roofline_us(problem: Problem, target: Target) -> float:
    """Returns the least time that arithmetic and memory traffic allow on a target, without the launch.

    It is the larger of two times: FLOP of the visible (query, key) pairs over the dense fp16 tensor peak, and the bytes
    of Q, K, V and O, each moved once, over the DRAM bandwidth. With a warm cache the bytes may come from L2, so a
    memory-bound kernel can exceed a share of 1.
    """
    memory_us = problem.min_bytes / (target.dram_gbps * 1e3)
    return max(floor_us(problem, target), memory_us)


def make_rows(findings: Sequence[Finding], problem: Problem, target: Target) -> tuple[ComparisonRow, ...]:
    """Returns the lines of the table: ours, then the timed peers by time, then the others in their given order."""
    medians = {id(finding): median_interval(finding.samples_us).median for finding in findings if finding.samples_us}
    ours_us = next((medians[id(f)] for f in findings if f.ours and f.outcome is PeerStatus.OK and f.samples_us), None)
    least_us = roofline_us(problem, target)
    ordered = sorted(findings, key=lambda finding: (not finding.ours, medians.get(id(finding), float("inf"))))
    return tuple(_row(finding, problem.flops, least_us, ours_us) for finding in ordered)


def _row(finding: Finding, flops: int, least_us: float, ours_us: float | None) -> ComparisonRow:
    interval = median_interval(finding.samples_us) if finding.samples_us else None
    time_us = interval.median if interval else None
    return ComparisonRow(
        name=finding.name,
        ours=finding.ours,
        outcome=finding.outcome.value,
        median_us=time_us,
        low_us=interval.low if interval else None,
        high_us=interval.high if interval else None,
        tflops=flops / (time_us * 1e6) if time_us else None,
        roofline_share=least_us / time_us if time_us else None,
        max_error=finding.max_error,
        host_us=finding.host_us,
        ratio_to_ours=time_us / ours_us if time_us and ours_us else None,
        note=finding.note,
        prepare_s=finding.prepare_s,
    )


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """Formats the cells of a line in the order of :data:`HEADINGS`; a dash stands for a missing value."""
    interval = "-" if row.low_us is None or row.high_us is None else f"{row.low_us:.2f}-{row.high_us:.2f}"
    flag = {PeerStatus.WRONG.value: "WRONG: ", PeerStatus.FAILED.value: "failed: "}.get(row.outcome, "")
    return (
        row.name,
        _number(row.median_us, ".2f"),
        interval,
        _number(row.tflops, ".1f"),
        _number(row.roofline_share, ".1%"),
        _number(row.max_error, ".1e"),
        _number(row.host_us, ".1f"),
        "-" if row.ratio_to_ours is None else f"{row.ratio_to_ours:.2f}x",
        f"{flag}{row.note}",
    )


def facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Returns the facts needed to repeat the comparison, as names and values."""
    cache = "cold L2, flushed before every call" if comparison.method == "graph-cold" else "warm L2"
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions if version)
    return (
        ("problem", comparison.problem),
        ("device", comparison.device),
        ("versions", versions),
        ("timing", f"CUDA-graph replay, interleaved, {comparison.calls} calls x {comparison.samples} samples, {cache}"),
        ("roofline", f"{comparison.roofline_us:.2f} µs: FLOP over the tensor peak or bytes over the DRAM bandwidth"),
        ("error", f"largest difference to fp64 attention; up to {comparison.tolerance:.1e} passes"),
        *((("ours", comparison.config),) if comparison.config else ()),
    )


def document(comparison: Comparison) -> dict[str, Any]:
    """Returns the comparison as one JSON object."""
    best = comparison.best_peer
    return {
        **asdict(comparison),
        "versions": dict(comparison.versions),
        "rows": [asdict(row) for row in comparison.rows],
        "best_peer": None if best is None else best.name,
        "ours_over_best_peer": comparison.ours_over_best_peer,
    }


def markdown(comparison: Comparison) -> str:
    """Returns the comparison as a Markdown page."""
    lines = [f"# Attention kernels compared: {comparison.problem} on {escaping.markdown(comparison.device)}", ""]
    lines += [f"- {name}: {escaping.markdown(value)}" for name, value in facts(comparison)]
    right = "|".join([":--", *["--:"] * (len(HEADINGS) - 2), ":--"])
    lines += ["", f"{comparison.verdict[0].upper()}{comparison.verdict[1:]}.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{right}|"]
    for row in comparison.rows:
        name, *rest = map(escaping.markdown, cells(row))
        lines.append(f"| {' | '.join([f'**{name}**' if row.ours else name, *rest])} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
