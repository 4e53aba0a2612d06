"""Leaderboards with hostile texts in every column that holds one."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from evoengine.leaderboard.records import Scope, study_identity

HOSTILE = (
    'x\n#include "evil.h"\r*/ int evil; /* \\\n" ?>"""\'\'\' `id` $(id) ??/\n// \x00\x1b]0;owned\x07\x1b[31m'
    "\u202e\u2028 <script>alert(1)</script> [bold]m[/bold] | a | \\"
)
"""Everything that ends a comment, literal, line, cell or element somewhere, and codes that a terminal obeys."""
STUDY_TEXTS = ("device", "method", "strategy", "space_key")
ROW_TEXTS = (
    *("reason", "template_hash", "duplicate_of", "driver", "nvrtc", "baseline"),
    *("worst_case", "parity_reason"),
)
_IDENTITY = "problem, device_kind, device, arch, predicted, method, family, strategy, seed, space_key"


def changed(original: Path, folder: Path, *statements: tuple[str, tuple[object, ...]]) -> Path:
    """Returns a copy of a leaderboard after some SQL statements; its studies have the identity of their columns."""
    path = folder / "board.db"
    shutil.copy(original, path)
    with closing(sqlite3.connect(path)) as file, file:
        for statement, values in statements:
            file.execute(statement, values)
        for study, *columns in file.execute(f"SELECT id, {_IDENTITY} FROM evo_studies").fetchall():
            identity = study_identity(Scope(*columns[:6]), *columns[6:])
            file.execute("UPDATE evo_studies SET identity = ? WHERE id = ?", (identity, study))
    return path


def hostile_copy(original: Path, folder: Path) -> Path:
    """Returns a copy with hostile texts; device names still begin with that of an H200."""
    return changed(
        original,
        folder,
        *((f"UPDATE evo_studies SET {name} = ?", (f"NVIDIA H200 {HOSTILE}",)) for name in STUDY_TEXTS),
        *((f"UPDATE evo_evaluations SET {name} = ?", (HOSTILE,)) for name in ROW_TEXTS),
        ("UPDATE evo_evaluations SET method = (SELECT method FROM evo_studies AS s WHERE s.id = study_id)", ()),
        ("UPDATE evo_evaluations SET notes_json = ?", (json.dumps([HOSTILE]),)),
    )


def controls(text: str) -> list[str]:
    """Returns the characters that change what a terminal shows."""
    return [character for character in text if not character.isprintable() and character not in "\n\t"]
