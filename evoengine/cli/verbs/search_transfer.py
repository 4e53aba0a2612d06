"""What a search says about the rows that it takes over from earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evoengine.search.warmstart.transfer import Transferred


def transfer_lines(entries: Sequence[Transferred]) -> Iterator[str]:
    """One line for each problem and device that rows come from."""
    by_origin: dict[tuple[str, str, bool], list[Transferred]] = {}
    for entry in entries:
        by_origin.setdefault((entry.row.problem, entry.row.device, entry.row.predicted), []).append(entry)
    for number, ((problem, device, predicted), group) in enumerate(by_origin.items()):
        label = "transfer  " if number == 0 else " " * 10
        rows = ", ".join(f"row {entry.row.id}{' (made valid here)' if entry.repaired else ''}" for entry in group)
        kind = "predicted" if predicted else "measured"
        yield f"{label}{rows} of {problem}, {kind} on {device}, distance {group[0].distance:.1f}, tried first"


def transfer_document(entry: Transferred) -> dict[str, Any]:
    """One row for ``--json``."""
    return {
        "row": entry.row.id,
        "problem": entry.row.problem,
        "device": entry.row.device,
        "predicted": entry.row.predicted,
        "distance": entry.distance,
        "repaired": entry.repaired,
        "family": entry.config.family,
        "config": entry.config.as_dict(),
    }
