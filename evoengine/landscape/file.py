"""Landscape files: JSON in columns, compressed with xz; the whole content is checked before any of it is used.

Schema version 1 has the entries ``format``, ``schema``, ``problem`` (fields of :class:`~evoengine.model.Problem`; null
for a foreign kernel), ``device`` (fields of :class:`~evoengine.model.DeviceInfo`), ``limits`` (names and numbers),
``method``, ``provenance`` (fields of :class:`~evoengine.landscape.landscape.LandscapeSource`), and ``families``, a list
of objects that :mod:`evoengine.landscape.columns` describes.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from evoengine.documents import convert_document
from evoengine.errors import LandscapeError, ProblemError
from evoengine.landscape.columns import Count, family_document, read_family
from evoengine.landscape.landscape import MAX_CONFIGS, Landscape, LandscapeSource
from evoengine.landscape.packing import json_text, packed, read_json
from evoengine.model import DeviceInfo, Problem

FORMAT: Final = "evoengine-landscape"
SCHEMA: Final = 1
SUFFIX: Final = ".landscape.xz"
"""Usual ending of the file name; the content alone decides how a file is read."""

_KEY_DIGITS: Final = 16


class _DeviceDocument(msgspec.Struct, frozen=True):
    kind: str
    name: str
    arch: str
    driver: str
    nvrtc: str
    predicted: bool


class _FactsDocument(msgspec.Struct, frozen=True):
    problem: dict[str, object] | None
    device: _DeviceDocument
    limits: dict[str, Count]
    method: str
    provenance: LandscapeSource


def pack_landscape(landscape: Landscape) -> bytes:
    """Returns the content of a landscape file."""
    return packed(json_text(landscape_document(landscape)))


def read_landscape(path: Path | str) -> Landscape:
    """Reads and checks a landscape file.

    Raises:
        LandscapeError: The file cannot be read, or an entry is missing or invalid.
    """
    file, document = str(path), read_json(path)
    if document.get("format") != FORMAT:
        raise LandscapeError(file, "format", f"is not '{FORMAT}': 'landscape import' reads the files of other tuners")
    if document.get("schema") != SCHEMA:
        reason = f"is {document.get('schema')!r}, but this EvoEngine reads version {SCHEMA}"
        raise LandscapeError(file, "schema", reason)
    facts = read_facts(document, file)
    if not isinstance(document.get("families"), list):
        raise LandscapeError(file, "families", "is not a list")
    _check_size(document["families"], file)
    families = tuple(
        read_family(content, file, f"families[{number}]", predicted=facts.device.predicted, method=facts.method)
        for number, content in enumerate(document["families"])
    )
    names = [family.name for family in families]
    if not names or names != sorted(set(names)):
        raise LandscapeError(file, "families", "must be at least one, sorted by name, each once")
    if facts.problem is not None and any(e.ok and e.resources is None for f in families for e in f.evaluations):
        raise LandscapeError(file, "families", "a correct config of an attention problem lacks its resources")
    return keyed(replace(facts, families=families))


def _check_size(families: list[Any], file: str) -> None:
    """Refuses too many configs before they are read; a ``count`` that is no number is refused later."""
    counts = [content.get("count") for content in families if isinstance(content, dict)]
    total = sum(count for count in counts if isinstance(count, int) and count > 0)
    if total > MAX_CONFIGS:
        raise LandscapeError(file, "families", f"have {total:,} configs: at most {MAX_CONFIGS:,} are read")


def read_facts(content: object, file: str, key: str = "") -> Landscape:
    """Reads everything in a landscape document but the families.

    Args:
        content: The document, as parsed from JSON.
        file: Name of the document, for messages.
        key: Position of ``content`` in the file; empty for the whole file.

    Returns:
        A landscape without families.

    Raises:
        LandscapeError: An entry is missing or invalid.
    """
    document = convert_document(content, _FactsDocument, file, LandscapeError, key)
    problem_key = f"{key}.problem" if key else "problem"
    problem = None if document.problem is None else _read_problem(document.problem, file, problem_key)
    device = DeviceInfo(**msgspec.structs.asdict(document.device))
    return Landscape(problem, device, document.limits, document.method, (), document.provenance)


def keyed(landscape: Landscape) -> Landscape:
    """Returns the landscape with its key: the hash of its content."""
    text = json_text(landscape_document(landscape))
    return replace(landscape, key=hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS])


def landscape_document(landscape: Landscape) -> dict[str, Any]:
    """Returns a landscape in file format."""
    families = [family_document(family) for family in landscape.families]
    return {"format": FORMAT, "schema": SCHEMA, **facts_document(landscape), "families": families}


def facts_document(landscape: Landscape) -> dict[str, Any]:
    """Returns the entries of :func:`landscape_document` that describe no family."""
    return {
        "problem": None if landscape.problem is None else _problem_document(landscape.problem),
        "device": {name: getattr(landscape.device, name) for name in _DeviceDocument.__struct_fields__},
        "limits": dict(landscape.limits),
        "method": landscape.method,
        "provenance": asdict(landscape.provenance),
    }


def _problem_document(problem: Problem) -> dict[str, Any]:
    document = asdict(problem) | {"dtype": problem.dtype.value}
    return document | {name: list(document[name]) for name in ("lengths_q", "lengths_kv")}


def _read_problem(content: dict[str, object], file: str, key: str) -> Problem:
    known = {item.name for item in fields(Problem)}
    for name in content:
        if name not in known:
            raise LandscapeError(file, f"{key}.{name}", "a problem has no such field")
    try:
        return convert_document(content, Problem, file, LandscapeError, key)
    except ProblemError as error:
        raise LandscapeError(file, key, f"is no valid problem: {error}") from None
