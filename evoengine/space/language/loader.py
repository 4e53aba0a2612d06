"""Reads search-space files. Every mistake is told as one line: file, key, reason."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Value
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.conditions import circle, pinning_constraint
from evoengine.space.language.expression import ExpressionError, names_in, parse
from evoengine.space.language.rules import LIMIT_NAMES, PROBLEM_NAMES, Constraint, Derived, Start
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal, Tunable

MAX_VALUES: Final = 256
"""Most values of one tunable: an index fits a byte."""
RESERVED_NAMES: Final = frozenset(
    {
        "HEAD_DIM",
        "IS_BF16",
        "CAUSAL",
        "HAS_WINDOW_LEFT",
        "HAS_WINDOW_RIGHT",
        "HAS_SOFTCAP",
        "HAS_SINK",
        "HAS_LSE",
        "PACKED",
        "LAUNCH_THREADS",
        "LAUNCH_SMEM_BYTES",
        "PARAM_BYTES",
    }
)
"""Constants of the rendered prologue that are neither tunables nor derived."""

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]*")
_KINDS: Final[Mapping[str, type[Tunable]]] = {kind.kind: kind for kind in (Ordinal, Categorical, Boolean)}
_TABLES: Final = ("tunables", "derived", "constraints", "starts")


def load_space(path: Path | str) -> SearchSpace:
    """Reads one search-space file.

    Raises:
        SearchSpaceError: it cannot be read, or something in it is wrong.
    """
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SearchSpaceError(file, "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SearchSpaceError(file, "", "is not UTF-8 text") from None
    return parse_space(text, file)


def parse_space(text: str, file: str) -> SearchSpace:
    """Reads the text of a search-space file.

    Args:
        text: TOML.
        file: what errors call it.

    Raises:
        SearchSpaceError: something in it is wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SearchSpaceError(file, "", f"is not valid TOML: {error}") from None
    return _Reader(file).space(document)


def find_space(family: str) -> SearchSpace:
    """Loads a packaged search space by its family's name, or any file by its path.

    Args:
        family: ``mma``, or a path that ends in ``.toml``.

    Raises:
        UsageError: there is no such family; the message lists those there are.
        SearchSpaceError: the file is malformed.
    """
    if family.endswith(".toml"):
        return load_space(family)
    folder, known = data_dir("search_spaces"), family_names()
    if family not in known:
        choices = ", ".join(known) or "none is installed"
        raise UsageError(f"unknown family '{family}': choose one of {choices}, or give a .toml file")
    path = folder / f"{family}.toml"
    space = load_space(path)
    if space.family != family:
        raise SearchSpaceError(path, "family", f"is '{space.family}' but the file is named '{family}'")
    return space


def family_names() -> tuple[str, ...]:
    """The families whose search spaces are packaged, sorted."""
    return tuple(sorted(path.stem for path in data_dir("search_spaces").glob("*.toml")))


class _Reader:
    """Checks one document; ``file`` goes into every message."""

    def __init__(self, file: str) -> None:
        self._file = file

    def space(self, document: Mapping[str, Any]) -> SearchSpace:
        self._keys("", document, required=("family", "doc", "tunables"), optional=("derived", "constraints", "starts"))
        family = self._text(document, "", "family")
        if not _LABEL.fullmatch(family):
            raise self._error("family", f"'{family}' is not a lower-case name")
        doc = self._text(document, "", "doc")
        entries = {table: self._table(document.get(table, {}), table) for table in _TABLES}
        if not entries["tunables"]:
            raise self._error("tunables", "is empty")
        tunables = tuple(self._tunable(name, entry) for name, entry in entries["tunables"].items())
        self._no_clash(tunables, entries["derived"])
        derived = self._derived(entries["derived"], [tunable.name for tunable in tunables])
        constraints = self._constraints(entries["constraints"], [tunable.name for tunable in tunables], derived)
        conditions = self._conditions(tunables, derived, constraints)
        starts = self._starts(entries["starts"], tunables)
        return SearchSpace(family, doc, tunables, derived, constraints + conditions, self._file, starts)

    def _tunable(self, name: str, entry: Mapping[str, Any]) -> Tunable:
        key = f"tunables.{name}"
        self._name(key, name)
        kind = entry.get("kind")
        if "kind" in entry and (not isinstance(kind, str) or kind not in _KINDS):
            raise self._error(f"{key}.kind", f"unknown kind {kind!r}: use one of {', '.join(_KINDS)}")
        values_key = () if kind == Boolean.kind else ("values",)
        self._keys(key, entry, required=("kind", *values_key, "unit", "doc"), optional=("when",))
        cls = _KINDS[str(kind)]
        values = (False, True) if cls is Boolean else self._values(f"{key}.values", entry["values"], cls)
        when = self._text(entry, key, "when") if "when" in entry else ""
        return cls(name, values, self._text(entry, key, "unit"), self._text(entry, key, "doc"), when)

    def _values(self, key: str, values: object, kind: type[Tunable]) -> tuple[Value, ...]:
        if not isinstance(values, list):
            raise self._error(key, "must be a list")
        if not 1 <= len(values) <= MAX_VALUES:
            raise self._error(key, "is empty" if not values else f"has more than {MAX_VALUES} values")
        for value in values:
            if kind is Ordinal and (isinstance(value, bool) or not isinstance(value, int)):
                raise self._error(key, f"{value!r} is not an integer")
            if kind is Categorical and not (isinstance(value, str) and _LABEL.fullmatch(value)):
                raise self._error(key, f"{value!r} is not a lower-case name")
        repeated = [value for place, value in enumerate(values) if value in values[:place]]
        if repeated:
            raise self._error(key, f"{repeated[0]!r} is there twice")
        if kind is Ordinal and values != sorted(values):
            raise self._error(key, "must ascend: an ordinal tunable steps to the next value")
        if kind is Ordinal and max(map(abs, values)) >= 2**31:
            raise self._error(key, "has a value beyond 32 bits")
        return tuple(values)

    def _derived(self, entries: Mapping[str, Mapping[str, Any]], tunables: list[str]) -> tuple[Derived, ...]:
        known = {*tunables, *PROBLEM_NAMES, *LIMIT_NAMES}
        result = []
        for name, entry in entries.items():
            key = f"derived.{name}"
            self._name(key, name)
            if name in tunables:
                raise self._error(key, f"{name} is already a tunable")
            self._keys(key, entry, required=("expr", "unit", "doc"))
            expr = self._text(entry, key, "expr")
            self._expression(f"{key}.expr", expr, known, later=frozenset(entries))
            known.add(name)
            result.append(Derived(name, expr, self._text(entry, key, "unit"), self._text(entry, key, "doc")))
        return tuple(result)

    def _constraints(
        self, entries: Mapping[str, Mapping[str, Any]], tunables: list[str], derived: tuple[Derived, ...]
    ) -> tuple[Constraint, ...]:
        known = {*tunables, *(item.name for item in derived), *PROBLEM_NAMES, *LIMIT_NAMES}
        tuned = set(tunables)
        tuned.update(_transitively(tuned, derived))
        result = []
        for name, entry in entries.items():
            key = f"constraints.{name}"
            if not _LABEL.fullmatch(name):
                raise self._error(key, f"'{name}' is not a lower-case name")
            self._keys(key, entry, required=("rule", "reason"))
            rule = self._text(entry, key, "rule")
            self._condition(f"{key}.rule", rule, known)
            if not names_in(rule) & tuned:
                raise self._error(f"{key}.rule", "depends on no tunable")
            result.append(Constraint(name, rule, self._text(entry, key, "reason")))
        return tuple(result)

    def _conditions(
        self, tunables: tuple[Tunable, ...], derived: tuple[Derived, ...], constraints: tuple[Constraint, ...]
    ) -> tuple[Constraint, ...]:
        """The constraints that keep conditional tunables at their first values where they have no effect."""
        known = {tunable.name for tunable in tunables} | {item.name for item in derived} | PROBLEM_NAMES | LIMIT_NAMES
        taken = {constraint.name for constraint in constraints}
        conditional = [tunable for tunable in tunables if tunable.when]
        pins = []
        for tunable in conditional:
            key = f"tunables.{tunable.name}.when"
            self._condition(key, tunable.when, known)
            pin = pinning_constraint(tunable)
            self._condition(key, pin.rule, known)
            if pin.name in taken:
                raise self._error(key, f"becomes the constraint {pin.name}, and there is one of that name already")
            pins.append(pin)
        name = circle(conditional, derived)
        if name:
            raise self._error(f"tunables.{name}.when", "depends on the tunable itself, directly or through others")
        return tuple(pins)

    def _starts(self, entries: Mapping[str, Mapping[str, Any]], tunables: tuple[Tunable, ...]) -> tuple[Start, ...]:
        by_name = {tunable.name: tunable for tunable in tunables}
        result = []
        for name, entry in entries.items():
            key = f"starts.{name}"
            if not _LABEL.fullmatch(name):
                raise self._error(key, f"'{name}' is not a lower-case name")
            self._keys(key, entry, required=("doc", "values"))
            values = entry["values"]
            if not isinstance(values, dict) or not values:
                raise self._error(f"{key}.values", "must be a table of tunables that is not empty")
            for tunable, value in values.items():
                if tunable not in by_name:
                    raise self._error(f"{key}.values.{tunable}", "is no tunable of this file")
                if not any(value == known and type(value) is type(known) for known in by_name[tunable].values):
                    raise self._error(f"{key}.values.{tunable}", f"{value!r} is none of its values")
            result.append(Start(name, self._text(entry, key, "doc"), tuple(values.items())))
        return tuple(result)

    def _condition(self, key: str, text: str, known: set[str]) -> None:
        """Refuses what is no expression over known names, and what gives a number where yes or no is asked."""
        self._expression(key, text, known, later=frozenset())
        body = parse(text).tree.body
        negative = isinstance(body, ast.UnaryOp) and not isinstance(body.op, ast.Not)
        if negative or isinstance(body, ast.BinOp | ast.Call | ast.Constant):
            raise self._error(key, f"is not a condition but a value: `{text}`")

    def _expression(self, key: str, text: str, known: set[str], later: frozenset[str]) -> None:
        try:
            names = names_in(text)
        except ExpressionError as error:
            raise self._error(key, str(error)) from None
        unknown = sorted(names - known)
        if unknown:
            hint = "is defined only later" if unknown[0] in later else "is not known"
            raise self._error(key, f"{unknown[0]} {hint} in `{' '.join(text.split())}`")

    def _name(self, key: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise self._error(key, f"'{name}' is not an UPPER_CASE C++ identifier")
        if name in RESERVED_NAMES:
            raise self._error(key, f"'{name}' is a name that every kernel's prologue defines: use another")

    def _no_clash(self, tunables: tuple[Tunable, ...], derived: Mapping[str, object]) -> None:
        """The prologue names a categorical's values ``Q_LOCATION_DIRECT``: nothing else may have such a name."""
        taken = {tunable.name for tunable in tunables} | derived.keys()
        for tunable in tunables:
            for value in tunable.values if isinstance(tunable, Categorical) else ():
                constant = f"{tunable.name}_{str(value).upper()}"
                if constant in taken:
                    raise self._error(f"tunables.{tunable.name}.values", f"'{value}' clashes with the name {constant}")

    def _table(self, value: object, key: str) -> dict[str, dict[str, Any]]:
        if not isinstance(value, dict):
            raise self._error(key, "must be a table")
        for name, entry in value.items():
            if not isinstance(entry, dict):
                raise self._error(f"{key}.{name}", "must be a table")
        return value

    def _keys(
        self, key: str, entry: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> None:
        path: Callable[[str], str] = (f"{key}." if key else "").__add__
        for name in entry:
            if name not in required + optional:
                raise self._error(path(name), f"unknown key: use {', '.join(required + optional)}")
        for name in required:
            if name not in entry:
                raise self._error(path(name), "is missing")

    def _text(self, entry: Mapping[str, Any], key: str, name: str) -> str:
        value = entry[name]
        full = f"{key}.{name}" if key else name
        if not isinstance(value, str) or not value.strip():
            raise self._error(full, "must be a text that is not empty")
        return value.strip()

    def _error(self, key: str, reason: str) -> SearchSpaceError:
        return SearchSpaceError(self._file, key, reason)


def _transitively(tuned: set[str], derived: tuple[Derived, ...]) -> set[str]:
    """The derived names that depend on a tunable."""
    found: set[str] = set()
    for item in derived:
        if names_in(item.expr) & (tuned | found):
            found.add(item.name)
    return found
