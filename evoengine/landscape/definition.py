"""Definition of a recorded family: its search-space file with the tunables' values restricted to the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from evoengine.documents import convert_document
from evoengine.errors import LandscapeError, SearchSpaceError, UsageError
from evoengine.model import Value
from evoengine.space.language.conditions import cyclic_condition
from evoengine.space.language.expression import ExpressionError, parse
from evoengine.space.language.rules import Constraint, Derived, Start, check_size
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal, Tunable

MAX_VALUES: Final = 256
"""Largest number of values of one tunable: value indices are stored in one byte."""

_KINDS: Final[Mapping[str, type[Tunable]]] = {kind.kind: kind for kind in (Ordinal, Categorical, Boolean)}


class _TunableDocument(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["ordinal", "categorical", "boolean"]
    values: Annotated[tuple[Value, ...], Meta(min_length=1, max_length=MAX_VALUES)]
    unit: str
    doc: str
    when: str


class _StartDocument(msgspec.Struct, frozen=True):
    name: str
    doc: str
    values: dict[str, Value]


class _DefinitionDocument(msgspec.Struct, frozen=True):
    family: str
    doc: str
    tunables: Annotated[tuple[_TunableDocument, ...], Meta(min_length=1)]
    derived: tuple[Derived, ...]
    constraints: tuple[Constraint, ...]
    starts: tuple[_StartDocument, ...]


def definition_document(space: SearchSpace) -> dict[str, Any]:
    """Returns the entries of a family that define it."""
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


def read_definition(content: object, file: str, key: str) -> SearchSpace:
    """Reads the definition of a family; entries that do not belong to it are ignored.

    Args:
        content: The family, as parsed from JSON.
        file: Name of the document, for messages.
        key: Position of ``content`` in the document.

    Raises:
        LandscapeError: An entry is missing, of the wrong type or invalid.
    """
    document = convert_document(content, _DefinitionDocument, file, LandscapeError, key)
    tunables = {}
    for number, item in enumerate(document.tunables):
        if item.name in tunables:
            raise LandscapeError(file, f"{key}.tunables[{number}].name", f"'{item.name}' occurs twice")
        tunables[item.name] = _tunable(item, file, f"{key}.tunables[{number}]")
    for number, derived in enumerate(document.derived):
        _check_expression(derived.expr, file, f"{key}.derived[{number}].expr")
    for number, constraint in enumerate(document.constraints):
        _check_expression(constraint.rule, file, f"{key}.constraints[{number}].rule")
    starts = tuple(
        _start(item, tunables, file, f"{key}.starts[{number}].values") for number, item in enumerate(document.starts)
    )
    space = SearchSpace(
        document.family,
        document.doc,
        tuple(tunables.values()),
        document.derived,
        document.constraints,
        file,
        starts,
    )
    _check_whole(space, key)
    return space


def _check_whole(space: SearchSpace, key: str) -> None:
    """Checks what depends on several entries, as the loader of search-space files does."""
    try:
        check_size(space)
    except SearchSpaceError as error:
        raise LandscapeError(space.file, f"{key}.{error.key}", error.reason) from None
    if name := cyclic_condition(space.tunables, space.derived):
        number = list(space.by_name).index(name)
        reason = "depends on the tunable itself, directly or through others"
        raise LandscapeError(space.file, f"{key}.tunables[{number}].when", reason)


def _tunable(item: _TunableDocument, file: str, key: str) -> Tunable:
    if len(set(item.values)) < len(item.values):
        raise LandscapeError(file, f"{key}.values", "has a value twice")
    if item.kind == Ordinal.kind:
        numbers = [value for value in item.values if isinstance(value, int) and not isinstance(value, bool)]
        if len(numbers) < len(item.values) or any(after <= before for before, after in pairwise(numbers)):
            raise LandscapeError(file, f"{key}.values", "must be whole numbers in ascending order")
    if item.when:
        _check_expression(item.when, file, f"{key}.when")
    return _KINDS[item.kind](item.name, item.values, item.unit, item.doc, item.when)


def _check_expression(text: str, file: str, key: str) -> None:
    try:
        parse(text)
    except ExpressionError as error:
        raise LandscapeError(file, key, str(error)) from None


def _start(item: _StartDocument, tunables: Mapping[str, Tunable], file: str, key: str) -> Start:
    for name, value in item.values.items():
        if name not in tunables:
            raise LandscapeError(file, f"{key}.{name}", "there is no such tunable")
        try:
            tunables[name].encode(value)
        except UsageError as error:
            raise LandscapeError(file, f"{key}.{name}", str(error)) from None
    return Start(item.name, item.doc, tuple(item.values.items()))
