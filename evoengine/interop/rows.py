"""Leaderboard rows as JSON and CSV; :mod:`evoengine.interop.result_files` reads both back."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from typing import Any, Final

from evoengine import __version__
from evoengine.documents.escaping import csv_cell, printable_lines
from evoengine.leaderboard.records import Row

FORMAT: Final = "evoengine-leaderboard"
SCHEMA: Final = 1

COLUMNS: Final = (
    *("id", "rank", "champion", "status", "reason"),
    *("median_us", "low_us", "high_us", "predicted", "method", "energy_uj"),
    *("device_kind", "device", "arch", "problem", "family", "config", "registers", "spill_bytes", "smem_bytes"),
    *("max_error", "speedup", "code_hash", "created_at"),
)
"""Fields of a row in both formats; in CSV the config is a cell of JSON."""


def _row_fields(row: Row) -> dict[str, Any]:
    fields = {name: _plain(getattr(row, name)) for name in COLUMNS}
    when = row.created_at.isoformat(timespec="seconds") + "Z"
    return fields | {"status": row.status.value, "config": dict(row.config), "created_at": when}


def rows_json(rows: Iterable[Row]) -> str:
    """Returns rows as a JSON document with its format and schema version."""
    listed = [_row_fields(row) for row in rows]
    return json.dumps({"format": FORMAT, "schema": SCHEMA, "evoengine": __version__, "rows": listed}, indent=1) + "\n"


def rows_csv(rows: Iterable[Row]) -> str:
    """Returns rows as CSV with a header line; an empty cell is a missing value, and no text is a formula."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fields = _row_fields(row)
        texts = {name: csv_cell(printable_lines(value)) for name, value in fields.items() if isinstance(value, str)}
        writer.writerow(fields | texts | {"config": json.dumps(fields["config"], sort_keys=True)})
    return text.getvalue()


def _plain(value: Any) -> Any:
    """Replaces numbers that JSON cannot express by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
