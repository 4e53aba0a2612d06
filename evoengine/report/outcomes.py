"""Outcomes of all candidates: by status, and rejections by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.model import Status
from evoengine.report.facts import Rejection

_MEANINGS: Final[Mapping[Status, str]] = {
    Status.OK: "correct and timed",
    Status.INVALID_CONFIG: "breaks a constraint of the search space",
    Status.RENDER_FAILED: "the template could not be rendered",
    Status.COMPILE_FAILED: "the compiler refused it",
    Status.RESOURCE_LIMIT: "needs more registers or shared memory than the device has",
    Status.LAUNCH_FAILED: "illegal access, fault, or too few resources at launch",
    Status.PARITY_FAILED: "wrong result",
    Status.TIMEOUT: "the kernel hung",
    Status.CRASHED: "its worker process died",
    Status.DUPLICATE: "same machine code as another config",
    Status.PRUNED: "correct, but dropped during timing because it could not win",
}


@dataclass(frozen=True)
class Bar:
    """One line of a bar chart in HTML."""

    label: str
    text: str
    """Explanation, which may be long."""
    count: int
    percent: float
    """Length of the bar: share of all candidates, 0 to 100."""


def status_bars(counts: Mapping[Status, int]) -> Iterator[Bar]:
    """Yields one bar per status."""
    total = sum(counts.values())
    for status, count in counts.items():
        yield Bar(status.value, _MEANINGS[status], count, 100 * count / total)


def rejection_bars(found: Sequence[Rejection], total: int) -> Iterator[Bar]:
    """Yields one bar per status and reason.

    Args:
        found: Groups of rejected candidates.
        total: Number of all candidates.
    """
    for one in found:
        reason = f"{one.reason} (row {one.example_id}{', for example' if one.count > 1 else ''})"
        yield Bar(one.status.value, reason, one.count, 100 * one.count / total)
