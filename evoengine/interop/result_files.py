"""Result files as claims: read, checked, and reduced to configs that can be evaluated here.

Only JSON and CSV are parsed; nothing in a file is executed, and no source text is taken from it. Its statements about
correctness and speed are not trusted: each config is rendered from EvoEngine's own templates and evaluated again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine.documents import convert_document
from evoengine.documents.bounds import BoundsError, decode_text, parse_json
from evoengine.documents.escaping import from_csv_cell
from evoengine.documents.plain_numbers import parse_number
from evoengine.errors import LandscapeError
from evoengine.interop.foreign_results import TIME_UNITS_US
from evoengine.interop.rows import COLUMNS, FORMAT, SCHEMA
from evoengine.landscape.packing import json_object, read_content
from evoengine.leaderboard.imports import ImportedConfig
from evoengine.model import Config, Status, Value
from evoengine.space.search_space import SearchSpace

_KEY: Final = re.compile(
    r"(?:[1-9][0-9]{0,9}x){3}[1-9][0-9]{0,9}(?:-[a-z0-9_]+)*-(?:fp16|bf16)(?:-[a-z0-9.]+)*|workload-.+-[0-9a-f]{12}"
)
"""Keys of problems and of workloads, as a search writes them."""
_T4_CORRECT: Final = "correct"
_REPEATED: Final = "with the problem and config of an earlier row"

_Name = Annotated[str, Meta(max_length=200)]
_Time = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class _RowDocument(msgspec.Struct, frozen=True):
    status: Status
    problem: _Name
    family: _Name
    config: dict[str, Value]
    median_us: _Time | None
    predicted: bool
    device: _Name


class _RowsDocument(msgspec.Struct, frozen=True):
    rows: list[object]


class _T4Metadata(msgspec.Struct, frozen=True):
    problem: _Name
    predicted: bool
    device: _Name
    family: str | None = None


class _T4Measurement(msgspec.Struct, frozen=True):
    name: str
    unit: object = None
    value: object = None


class _T4Result(msgspec.Struct, frozen=True):
    invalidity: str
    configuration: dict[str, Value]
    measurements: list[_T4Measurement]


class _T4Document(msgspec.Struct, frozen=True):
    metadata: _T4Metadata
    results: list[_T4Result]


@dataclass(frozen=True)
class Vetted:
    """Configs of a result file that can be evaluated here."""

    configs: tuple[ImportedConfig, ...]
    """Configs whose tunables and values all exist in this version's search space."""
    rows: int
    """Number of entries of the file."""
    left_out: Mapping[str, int]
    """Reasons why entries were left out, with their numbers."""


@dataclass(frozen=True)
class _Claim:
    """One entry of a result file."""

    correct: bool
    problem: str
    family: str
    config: Mapping[str, Value]
    claimed_us: float | None
    predicted: bool
    device: str


def read_claims(path: Path, spaces: Mapping[str, SearchSpace], family: str | None = None) -> Vetted:
    """Reads a leaderboard as JSON or CSV, or T4 results.

    Args:
        path: Result file; its content decides which format it has.
        spaces: Search spaces of this version by family.
        family: Family of T4 results that do not name one; the format has no field for it, EvoEngine's files add it.

    Raises:
        LandscapeError: The file cannot be read, or an entry is missing or invalid.
    """
    content = read_content(path)
    origin = f"{path.name} {hashlib.sha256(content).hexdigest()[:12]}"
    if content.lstrip()[:1] not in (b"{", b"") and content.startswith(COLUMNS[0].encode()):
        claims = _csv_claims(path, content)
    else:
        document = json_object(content, path)
        if "format" not in document and "schema_version" in document:
            claims = _t4_claims(path, document, family)
        else:
            claims = _json_claims(path, document)
    return _vet(list(claims), spaces, origin)


def _json_claims(path: Path, document: Mapping[str, Any]) -> Iterator[_Claim]:
    if document.get("format") != FORMAT:
        known = f"'{FORMAT}', the format of 'leaderboard export --format json', nor T4 results"
        raise LandscapeError(path, "format", f"is {document.get('format')!r}, not {known}")
    if document.get("schema") != SCHEMA:
        reason = f"is {document.get('schema')!r}, but this EvoEngine reads version {SCHEMA}"
        raise LandscapeError(path, "schema", reason)
    rows = convert_document(document, _RowsDocument, path, LandscapeError).rows
    for number, content in enumerate(rows):
        yield _row_claim(path, f"rows[{number}]", content)


def _row_claim(path: Path, key: str, content: object) -> _Claim:
    row = convert_document(content, _RowDocument, path, LandscapeError, key)
    for name in ("problem", "family", "device"):
        _check_printable(path, f"{key}.{name}", getattr(row, name))
    return _Claim(
        correct=row.status is Status.OK,
        problem=row.problem,
        family=row.family,
        config=row.config,
        claimed_us=row.median_us,
        predicted=row.predicted,
        device=row.device,
    )


def _check_printable(path: Path, key: str, text: str) -> None:
    """Refuses control characters, which could change what a terminal shows."""
    if not text.isprintable():
        raise LandscapeError(path, key, "has characters that cannot be printed")


def _csv_claims(path: Path, content: bytes) -> Iterator[_Claim]:
    try:
        reader = csv.DictReader(io.StringIO(decode_text(content)), strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise LandscapeError(path, missing[0], "the column is missing")
        for number, row in enumerate(reader, start=2):
            yield _row_claim(path, f"line {number}", dict(_csv_values(path, number, row)))
    except (BoundsError, csv.Error) as error:
        raise LandscapeError(path, "", f"is not CSV: {error}") from None


def _csv_values(path: Path, number: int, row: Mapping[str, str | None]) -> Iterator[tuple[str, Any]]:
    """Yields the cells as a JSON document would hold them; cells that a claim does not need stay text."""
    if None in row or None in row.values():
        raise LandscapeError(path, f"line {number}", f"does not have {len(COLUMNS)} cells")
    for name, cell in row.items():
        assert cell is not None, "checked above"
        try:
            match name:
                case "config":
                    yield name, parse_json(cell)
                case "median_us":
                    yield name, parse_number(cell) if cell else None
                case "predicted":
                    yield name, {"True": True, "False": False}[cell]
                case _:
                    yield name, from_csv_cell(cell)
        except (ValueError, KeyError):
            raise LandscapeError(path, f"line {number}.{name}", f"cannot be {cell[:40]!r}") from None


def _t4_claims(path: Path, content: object, family: str | None) -> Iterator[_Claim]:
    document = convert_document(content, _T4Document, path, LandscapeError)
    metadata = document.metadata
    named = family or metadata.family
    if named is None:
        raise LandscapeError(
            path, "metadata.family", "is missing: T4 results do not name a kernel family, so give --family"
        )
    for name in ("problem", "device"):
        _check_printable(path, f"metadata.{name}", getattr(metadata, name))
    for number, result in enumerate(document.results):
        yield _Claim(
            correct=result.invalidity == _T4_CORRECT,
            problem=metadata.problem,
            family=named,
            config=result.configuration,
            claimed_us=_t4_us(path, f"results[{number}].measurements", result.measurements),
            predicted=metadata.predicted,
            device=metadata.device,
        )


def _t4_us(path: Path, key: str, measurements: Sequence[_T4Measurement]) -> float | None:
    for number, measured in enumerate(measurements):
        if measured.name == "time":
            unit = measured.unit
            if not isinstance(unit, str) or unit not in TIME_UNITS_US:
                reason = f"is {unit!r}, not a unit of time: give ns, us, ms or s"
                raise LandscapeError(path, f"{key}[{number}].unit", reason)
            if measured.value is None:
                return None
            value = convert_document(measured.value, _Time, path, LandscapeError, f"{key}[{number}].value")
            return value * TIME_UNITS_US[unit]
    return None


def _vet(claims: Sequence[_Claim], spaces: Mapping[str, SearchSpace], origin: str) -> Vetted:
    kept: dict[tuple[str, Config], ImportedConfig] = {}
    left_out: Counter[str] = Counter()
    for claim in claims:
        reason = _objection(claim, spaces)
        if reason:
            left_out[reason] += 1
            continue
        assert claim.claimed_us is not None, "checked by _objection"
        config = Config.of(claim.family, claim.config)
        one = ImportedConfig(claim.problem, config, claim.claimed_us, claim.predicted, claim.device, origin)
        if kept.setdefault((claim.problem, config), one) is not one:
            left_out[_REPEATED] += 1
    return Vetted(tuple(kept.values()), len(claims), dict(left_out))


def _objection(claim: _Claim, spaces: Mapping[str, SearchSpace]) -> str:
    """Returns why a config cannot be evaluated here; empty if it can."""
    if not claim.correct:
        return "not said to be correct"
    if claim.claimed_us is None:
        return "without a time"
    if not _KEY.fullmatch(claim.problem):
        return f"problem {claim.problem[:40]!r} is not the key of a problem"
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
