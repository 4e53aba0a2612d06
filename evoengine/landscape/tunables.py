"""The definition of a recorded family: what its search-space file said, with the values that were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final

from evoengine.errors import UsageError
from evoengine.landscape.checked import Checked
from evoengine.space.language.expression import ExpressionError, parse
from evoengine.space.language.rules import Constraint, Derived, Start
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal, Tunable

MAX_VALUES: Final = 256
"""Most values of one tunable: a place fits a byte."""

_KINDS: Final[Mapping[str, type[Tunable]]] = {kind.kind: kind for kind in (Ordinal, Categorical, Boolean)}


def definition_document(space: SearchSpace) -> dict[str, Any]:
    """The keys of a family that define it."""
    return {
        "family": space.family,
        "doc": space.doc,
        "tunables": [
            {
                "name": tunable.name,
                "kind": tunable.kind,
                "values": list(tunable.values),
                "unit": tunable.unit,
                "doc": tunable.doc,
                "when": tunable.when,
            }
            for tunable in space.tunables
        ],
        "derived": [asdict(item) for item in space.derived],
        "constraints": [asdict(constraint) for constraint in space.constraints],
        "starts": [{"name": start.name, "doc": start.doc, "values": dict(start.values)} for start in space.starts],
    }


def read_definition(part: Checked) -> SearchSpace:
    """Checks the definition of a family.

    Raises:
        LandscapeError: something in it is wrong.
    """
    tunables = tuple(_tunable(entry) for entry in part.parts("tunables"))
    if not tunables or len({tunable.name for tunable in tunables}) < len(tunables):
        raise part.error("tunables", "is empty, or has a name twice")
    derived = tuple(
        Derived(entry.text("name"), _expression(entry, "expr"), entry.text("unit"), entry.text("doc"))
        for entry in part.parts("derived")
    )
    constraints = tuple(
        Constraint(entry.text("name"), _expression(entry, "rule"), entry.text("reason"))
        for entry in part.parts("constraints")
    )
    starts = tuple(_start(entry, {tunable.name: tunable for tunable in tunables}) for entry in part.parts("starts"))
    return SearchSpace(part.text("family"), part.text("doc"), tunables, derived, constraints, part.file, starts)


def _tunable(entry: Checked) -> Tunable:
    kind = entry.text("kind")
    if kind not in _KINDS:
        raise entry.error("kind", f"'{kind}' is none of {', '.join(_KINDS)}")
    values = entry.values("values")
    if not 1 <= len(values) <= MAX_VALUES:
        raise entry.error("values", f"has {len(values)} entries, not 1 to {MAX_VALUES}")
    if kind == Ordinal.kind:
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if len(numbers) < len(values) or any(after <= before for before, after in pairwise(numbers)):
            raise entry.error("values", "must be whole numbers in ascending order")
    when = _expression(entry, "when") if entry.text("when") else ""
    return _KINDS[kind](entry.text("name"), values, entry.text("unit"), entry.text("doc"), when)


def _expression(entry: Checked, name: str) -> str:
    text = entry.text(name)
    try:
        parse(text)
    except ExpressionError as error:
        raise entry.error(name, str(error)) from None
    return text


def _start(entry: Checked, tunables: Mapping[str, Tunable]) -> Start:
    values = entry.part("values").content
    for name, value in values.items():
        if name not in tunables:
            raise entry.error(f"values.{name}", "there is no such tunable")
        try:
            tunables[name].encode(value)
        except UsageError as error:
            raise entry.error(f"values.{name}", str(error)) from None
    return Start(entry.text("name"), entry.text("doc"), tuple(values.items()))
