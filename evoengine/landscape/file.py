"""Landscape files: JSON in columns, compressed with xz. Nothing in a file is believed before it is checked.

The schema, version 1: ``format``, ``schema``, ``problem`` (the fields of :class:`~evoengine.model.Problem`, or null for
a foreign kernel), ``device`` (the fields of :class:`~evoengine.model.DeviceInfo`), ``limits`` (names and numbers),
``method``, ``provenance`` (the fields of :class:`~evoengine.landscape.landscape.LandscapeSource`), and ``families``, a list
of what :mod:`evoengine.landscape.columns` describes.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from evoengine.errors import ProblemError
from evoengine.landscape.checked import Checked
from evoengine.landscape.columns import family_document, read_family
from evoengine.landscape.landscape import Landscape, LandscapeSource
from evoengine.landscape.packing import json_text, packed, read_json
from evoengine.model import DeviceInfo, DType, Problem

FORMAT: Final = "evoengine-landscape"
SCHEMA: Final = 1
SUFFIX: Final = ".landscape.xz"
"""How the name of a file usually ends; only its content counts."""

_DEVICE_TEXTS: Final = ("kind", "name", "arch", "driver", "nvrtc")
_KEY_DIGITS: Final = 16


def pack_landscape(landscape: Landscape) -> bytes:
    """The content of a file."""
    return packed(json_text(landscape_document(landscape)))


def read_landscape(path: Path | str) -> Landscape:
    """Reads and checks a file.

    Raises:
        LandscapeError: it cannot be read, or something in it is wrong.
    """
    whole = Checked(str(path), "", read_json(path))
    if whole.content.get("format") != FORMAT:
        raise whole.error("format", f"is not '{FORMAT}': 'landscape import' reads the files of other tuners")
    if whole.get("schema") != SCHEMA:
        raise whole.error("schema", f"is {whole.get('schema')!r}, but this EvoEngine reads version {SCHEMA}")
    facts = read_facts(whole)
    families = tuple(
        read_family(part, predicted=facts.device.predicted, method=facts.method) for part in whole.parts("families")
    )
    names = [family.name for family in families]
    if not names or names != sorted(set(names)):
        raise whole.error("families", "must be at least one, sorted by name, each once")
    if facts.problem is not None and any(e.ok and e.resources is None for f in families for e in f.evaluations):
        raise whole.error("families", "a correct config of an attention problem lacks its resources")
    return keyed(replace(facts, families=families))


def read_facts(whole: Checked) -> Landscape:
    """What stands in a file besides the families; a landscape without any.

    Raises:
        LandscapeError: something in it is wrong.
    """
    device = _device(whole.part("device"))
    limits = _limits(whole.part("limits"))
    return Landscape(_problem(whole), device, limits, whole.text("method"), (), _provenance(whole))


def keyed(landscape: Landscape) -> Landscape:
    """The landscape with the hash of its content, which tells it apart from every other."""
    text = json_text(landscape_document(landscape))
    return replace(landscape, key=hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS])


def landscape_document(landscape: Landscape) -> dict[str, Any]:
    """What stands in a file."""
    families = [family_document(family) for family in landscape.families]
    return {"format": FORMAT, "schema": SCHEMA, **facts_document(landscape), "families": families}


def facts_document(landscape: Landscape) -> dict[str, Any]:
    """What stands in a file besides the families."""
    return {
        "problem": None if landscape.problem is None else problem_document(landscape.problem),
        "device": {name: getattr(landscape.device, name) for name in (*_DEVICE_TEXTS, "predicted")},
        "limits": dict(landscape.limits),
        "method": landscape.method,
        "provenance": asdict(landscape.provenance),
    }


def problem_document(problem: Problem) -> dict[str, Any]:
    """The fields of a problem, as JSON holds them."""
    document = asdict(problem) | {"dtype": problem.dtype.value}
    return document | {name: list(document[name]) for name in ("lengths_q", "lengths_kv")}


def read_problem(part: Checked) -> Problem:
    """A problem from its fields.

    Raises:
        LandscapeError: they make none.
    """
    known = {item.name: item for item in fields(Problem)}
    content = dict(part.content)
    for name in content:
        if name not in known:
            raise part.error(name, "a problem has no such field")
    try:
        content["dtype"] = DType(content.get("dtype"))
        content |= {name: tuple(content.get(name, ())) for name in ("lengths_q", "lengths_kv")}
        return Problem(**content)
    except (ProblemError, TypeError, ValueError) as error:
        raise part.error("", f"makes no problem: {error}") from None


def _problem(whole: Checked) -> Problem | None:
    return None if whole.get("problem") is None else read_problem(whole.part("problem"))


def _device(part: Checked) -> DeviceInfo:
    texts = {name: part.text(name) for name in _DEVICE_TEXTS}
    return DeviceInfo(predicted=part.flag("predicted"), **texts)


def _limits(part: Checked) -> dict[str, int]:
    return {name: part.whole(name) for name in part.content}


def _provenance(whole: Checked) -> LandscapeSource:
    part = whole.part("provenance")
    return LandscapeSource(**{item.name: part.text(item.name) for item in fields(LandscapeSource)})
