"""Files of results as claims: read, checked, and reduced to configs that can be tried here.

Only JSON and CSV are parsed; nothing of a file is executed, and no source text is taken from it. What a claim says of
correctness and speed is not believed: its config is rendered from our own templates and goes the whole road again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import LandscapeError
from evoengine.interop.rows import COLUMNS, FORMAT, SCHEMA
from evoengine.landscape.checked import Checked
from evoengine.landscape.packing import MOST_BYTES, read_json
from evoengine.leaderboard.imports import ImportedConfig
from evoengine.model import Config, Status, Value
from evoengine.space.search_space import SearchSpace

_T4_CORRECT: Final = "correct"
_LONGEST_NAME: Final = 200
_T4_UNITS: Final[Mapping[str, float]] = {
    "microseconds": 1.0,
    "us": 1.0,
    "milliseconds": 1e3,
    "ms": 1e3,
    "seconds": 1e6,
    "s": 1e6,
}
"""Microseconds in each unit of time that a T4 file may name."""


@dataclass(frozen=True)
class Vetted:
    """What a file brought."""

    configs: tuple[ImportedConfig, ...]
    """Can be tried here: every tunable is known and has one of its values."""
    rows: int
    """Entries of the file."""
    left_out: Mapping[str, int]
    """Why the others cannot, and how many."""


def read_claims(path: Path, spaces: Mapping[str, SearchSpace], family: str | None = None) -> Vetted:
    """Reads a leaderboard as JSON or CSV, or T4 results.

    Args:
        path: the file; its content decides what it is.
        spaces: the search spaces of this version by family.
        family: the family of T4 results, whose format has no place for it; ours name it.

    Raises:
        LandscapeError: the file cannot be read, or something in it is malformed: file, key, reason.
    """
    content = _content(path)
    origin = f"{path.name} {hashlib.sha256(content).hexdigest()[:12]}"
    if content.lstrip()[:1] not in (b"{", b"") and content.startswith(COLUMNS[0].encode()):
        claims = _csv_claims(path, content)
    else:
        whole = Checked(str(path), "", read_json(path))
        if "format" not in whole.content and "schema_version" in whole.content:
            claims = _t4_claims(whole, family)
        else:
            claims = _own_claims(whole)
    return _vet(list(claims), spaces, origin)


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LandscapeError(path, "", f"is larger than {MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise LandscapeError(path, "", f"cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class _Claim:
    part: Checked
    """The entry, for messages."""
    correct: bool
    problem: str
    family: str
    config: Mapping[str, Any]
    claimed_us: float | None
    predicted: bool
    device: str


def _own_claims(whole: Checked) -> Iterator[_Claim]:
    if whole.content.get("format") != FORMAT:
        known = f"'{FORMAT}', what 'leaderboard export --format json' writes, nor T4 results"
        raise whole.error("format", f"is {whole.content.get('format')!r}, not {known}")
    if whole.get("schema") != SCHEMA:
        raise whole.error("schema", f"is {whole.get('schema')!r}, but this EvoEngine reads version {SCHEMA}")
    for part in whole.parts("rows"):
        yield _own_claim(part)


def _own_claim(part: Checked) -> _Claim:
    status = part.text("status")
    if status not in {known.value for known in Status}:
        raise part.error("status", f"is '{status}': there is no such status")
    return _Claim(
        part=part,
        correct=status == Status.OK.value,
        problem=_name(part, "problem"),
        family=_name(part, "family"),
        config=part.part("config").content,
        claimed_us=_amount(part, "median_us"),
        predicted=part.flag("predicted"),
        device=_name(part, "device"),
    )


def _csv_claims(path: Path, content: bytes) -> Iterator[_Claim]:
    try:
        reader = csv.DictReader(io.StringIO(content.decode()), strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise LandscapeError(path, missing[0], "the column is missing")
        for number, row in enumerate(reader, start=2):
            yield _own_claim(Checked(str(path), f"line {number}", dict(_csv_values(path, number, row))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise LandscapeError(path, "", f"is no CSV: {error}") from None


def _csv_values(path: Path, number: int, row: Mapping[str, str | None]) -> Iterator[tuple[str, Any]]:
    """The cells as JSON would have them, as far as a claim needs them."""
    if None in row or None in row.values():
        raise LandscapeError(path, f"line {number}", f"does not have {len(COLUMNS)} cells")
    for name, cell in row.items():
        assert cell is not None, "looked at above"
        try:
            match name:
                case "config":
                    yield name, json.loads(cell)
                case "median_us":
                    yield name, float(cell) if cell else None
                case "predicted":
                    yield name, {"True": True, "False": False}[cell]
                case _:
                    yield name, cell
        except (ValueError, KeyError, RecursionError):
            raise LandscapeError(path, f"line {number}.{name}", f"cannot be '{cell[:40]}'") from None


def _t4_claims(whole: Checked, family: str | None) -> Iterator[_Claim]:
    metadata = whole.part("metadata")
    named = family or metadata.content.get("family")
    if not isinstance(named, str):
        raise metadata.error("family", "is missing: T4 results do not name a kernel family, so give --family")
    for part in whole.parts("results"):
        yield _Claim(
            part=part,
            correct=part.text("invalidity") == _T4_CORRECT,
            problem=_name(metadata, "problem"),
            family=named,
            config=part.part("configuration").content,
            claimed_us=_t4_us(part),
            predicted=metadata.flag("predicted"),
            device=_name(metadata, "device"),
        )


def _name(part: Checked, name: str) -> str:
    """A short text that a terminal can show."""
    text = part.text(name)
    if not text.isprintable() or len(text) > _LONGEST_NAME:
        raise part.error(name, f"is not a line of at most {_LONGEST_NAME} characters that can be printed")
    return text


def _t4_us(part: Checked) -> float | None:
    for measured in part.parts("measurements"):
        if measured.text("name") == "time":
            unit = measured.text("unit")
            if unit not in _T4_UNITS:
                raise measured.error("unit", f"is '{unit}', not one of {', '.join(_T4_UNITS)}")
            value = _amount(measured, "value")
            return None if value is None else value * _T4_UNITS[unit]
    return None


def _amount(part: Checked, name: str) -> float | None:
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise part.error(name, f"is {value!r}, not a number above 0")
    return float(value)


def _vet(claims: Sequence[_Claim], spaces: Mapping[str, SearchSpace], origin: str) -> Vetted:
    kept: dict[tuple[str, Config], ImportedConfig] = {}
    left_out: Counter[str] = Counter()
    for claim in claims:
        for name, value in claim.config.items():
            if not isinstance(value, int | str):
                raise claim.part.error(f"config.{name}", f"is {value!r}, not a whole number, a text, true or false")
        reason = _objection(claim, spaces)
        if reason:
            left_out[reason] += 1
            continue
        assert claim.claimed_us is not None, "an objection else"
        config = Config.of(claim.family, claim.config)
        one = ImportedConfig(claim.problem, config, claim.claimed_us, claim.predicted, claim.device, origin)
        kept.setdefault((claim.problem, config), one)
    return Vetted(tuple(kept.values()), len(claims), dict(left_out))


def _objection(claim: _Claim, spaces: Mapping[str, SearchSpace]) -> str:
    """Why a config cannot be tried here; empty when it can."""
    if not claim.correct:
        return "not said to be correct"
    if claim.claimed_us is None:
        return "without a time"
    space = spaces.get(claim.family)
    if space is None:
        return f"family {claim.family[:40]!r} is not known here"
    known: dict[str, tuple[Value, ...]] = {tunable.name: tunable.values for tunable in space.tunables}
    if set(claim.config) != set(known):
        return f"family {claim.family} has other tunables here"
    for name, value in claim.config.items():
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in known[name]):
            return f"{claim.family}.{name} cannot be {str(value)[:40]!r} here"
    return ""
