"""Loader of search-space files; every error names file, key and reason."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from evoengine.documents import FamilyName, LowerName, Text, UpperName, convert_document
from evoengine.documents.bounds import BoundsError, decode_text, parse_toml, read_bounded
from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Value, Variant
from evoengine.space.data_dirs import data_dirs, own_family_hint
from evoengine.space.language.conditions import cyclic_condition, pinning_constraint
from evoengine.space.language.expression import ExpressionError, names_in, parse
from evoengine.space.language.rules import LIMIT_NAMES, PROBLEM_NAMES, Constraint, Derived, Start, check_size
from evoengine.space.language.variant_text import with_tunables
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal, Tunable

MAX_VALUES: Final = 256
"""Maximum number of values of a tunable, so that an index fits into a byte."""
_MAX_ORDINAL: Final = 2**31 - 1
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
"""Constants of the rendered prologue that are neither tunables nor derived values."""

_Count = msgspec.Meta(min_length=1, max_length=MAX_VALUES)
_Int32 = Annotated[int, msgspec.Meta(ge=-_MAX_ORDINAL, le=_MAX_ORDINAL)]


class _Tunable(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    unit: Text
    doc: Text
    when: Text = ""


class _Ordinal(_Tunable, tag=Ordinal.kind, kw_only=True):
    values: Annotated[list[_Int32], _Count]


class _Categorical(_Tunable, tag=Categorical.kind, kw_only=True):
    values: Annotated[list[LowerName], _Count]


class _Boolean(_Tunable, tag=Boolean.kind):
    pass


class _Derived(msgspec.Struct, forbid_unknown_fields=True):
    expr: Text
    unit: Text
    doc: Text


class _Constraint(msgspec.Struct, forbid_unknown_fields=True):
    rule: Text
    reason: Text


class _Start(msgspec.Struct, forbid_unknown_fields=True):
    doc: Text
    values: Annotated[dict[str, int | str | bool], msgspec.Meta(min_length=1)]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """Structure of a search-space file."""

    family: FamilyName
    doc: Text
    tunables: Annotated[dict[UpperName, _Ordinal | _Categorical | _Boolean], msgspec.Meta(min_length=1)]
    derived: dict[UpperName, _Derived] = {}
    constraints: dict[LowerName, _Constraint] = {}
    starts: dict[LowerName, _Start] = {}


def load_space(path: Path | str) -> SearchSpace:
    """Loads a search-space file.

    Raises:
        SearchSpaceError: The file cannot be read, or its content is invalid.
    """
    file = str(path)
    try:
        text = decode_text(read_bounded(Path(path)))
    except OSError as error:
        raise SearchSpaceError(file, "", f"cannot be read: {error.strerror}") from None
    except BoundsError as error:
        raise SearchSpaceError(file, "", str(error)) from None
    return parse_space(text, file)


def parse_space(text: str, file: str) -> SearchSpace:
    """Parses the text of a search-space file.

    Args:
        text: Content in TOML.
        file: Name of the file, for messages.

    Raises:
        SearchSpaceError: The content is invalid.
    """
    try:
        content = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SearchSpaceError(file, "", f"is not valid TOML: {error}") from None
    except BoundsError as error:
        raise SearchSpaceError(file, "", str(error)) from None
    return _Reader(file).space(convert_document(content, _Document, file, SearchSpaceError))


def find_space(family: str, variants: Sequence[Variant] = ()) -> SearchSpace:
    """Loads the search space of a family or of a variant by its name, or any file by its path.

    Args:
        family: Name such as ``mma``, or a path that ends in ``.toml``.
        variants: Variants that may be named.

    Raises:
        UsageError: The family is unknown; the message lists the known ones.
        SearchSpaceError: The file is invalid.
        PatchError: A tunable of the variant cannot be stated.
    """
    variant = next((one for one in variants if one.name == family), None)
    if variant is not None:
        return parse_space(variant_text(variant), f"the search space of {family}")
    return load_space(family) if family.endswith(".toml") else family_space(family)


def variant_text(variant: Variant) -> str:
    """Returns the text of a variant's search-space file: that of its family with the tunables of its patch.

    Raises:
        UsageError: The family is unknown.
        SearchSpaceError: The family's file cannot be read.
        PatchError: A tunable of the patch cannot be stated in such a file.
    """
    file = family_space(variant.family).file
    return with_tunables(decode_text(read_bounded(Path(file))), variant)


def family_space(family: str) -> SearchSpace:
    """Loads the search space of a family, the user's or the packaged one; no name of a stored row reaches another file.

    Raises:
        UsageError: The family is unknown; the message lists the known ones.
        SearchSpaceError: The file is invalid.
    """
    known = family_names()
    if family not in known:
        choices = ", ".join(known) or "none is installed"
        raise UsageError(f"unknown family '{family}': choose one of {choices}, or give a .toml file{own_family_hint()}")
    path = next(path for folder in data_dirs("search_spaces") if (path := folder / f"{family}.toml").is_file())
    space = load_space(path)
    if space.family != family:
        raise SearchSpaceError(path, "family", f"is '{space.family}' but the file is named '{family}'")
    return space


def family_names() -> tuple[str, ...]:
    """Returns the families with a packaged search space or one in the user's folder, sorted."""
    files = (path for folder in data_dirs("search_spaces") for path in folder.glob("*.toml"))
    return tuple(sorted({path.stem for path in files if path.is_file()}))  # not an editor's dangling link


class _Reader:
    """Builds a search space from a document of valid structure, and checks names, values and expressions."""

    def __init__(self, file: str) -> None:
        self._file = file

    def space(self, document: _Document) -> SearchSpace:
        """Builds the search space of a document."""
        tunables = tuple(self._tunable(name, entry) for name, entry in document.tunables.items())
        self._no_clash(tunables, document.derived)
        names = [tunable.name for tunable in tunables]
        derived = self._derived(document.derived, names)
        constraints = self._constraints(document.constraints, names, derived)
        conditions = self._conditions(tunables, derived, constraints)
        starts = self._starts(document.starts, tunables)
        doc = document.doc.strip()
        space = SearchSpace(document.family, doc, tunables, derived, constraints + conditions, self._file, starts)
        check_size(space)
        return space

    def _tunable(self, name: str, entry: _Ordinal | _Categorical | _Boolean) -> Tunable:
        self._not_reserved(f"tunables.{name}", name)
        unit, doc, when = entry.unit.strip(), entry.doc.strip(), entry.when.strip()
        if isinstance(entry, _Boolean):
            return Boolean(name, (False, True), unit, doc, when)
        key = f"tunables.{name}.values"
        self._no_repetition(key, entry.values)
        if isinstance(entry, _Categorical):
            return Categorical(name, tuple(entry.values), unit, doc, when)
        if entry.values != sorted(entry.values):
            raise self._error(key, "values of an ordinal tunable must ascend")
        return Ordinal(name, tuple(entry.values), unit, doc, when)

    def _no_repetition(self, key: str, values: Sequence[Value]) -> None:
        for index, value in enumerate(values):
            if value in values[:index]:
                raise self._error(f"{key}[{index}]", f"{value!r} is repeated")

    def _derived(self, entries: Mapping[str, _Derived], tunables: Sequence[str]) -> tuple[Derived, ...]:
        known = {*tunables, *PROBLEM_NAMES, *LIMIT_NAMES}
        result = []
        for name, entry in entries.items():
            key = f"derived.{name}"
            self._not_reserved(key, name)
            if name in tunables:
                raise self._error(key, f"{name} is already a tunable")
            expr = entry.expr.strip()
            self._expression(f"{key}.expr", expr, known, later=frozenset(entries))
            known.add(name)
            result.append(Derived(name, expr, entry.unit.strip(), entry.doc.strip()))
        return tuple(result)

    def _constraints(
        self, entries: Mapping[str, _Constraint], tunables: Sequence[str], derived: tuple[Derived, ...]
    ) -> tuple[Constraint, ...]:
        known = {*tunables, *(item.name for item in derived), *PROBLEM_NAMES, *LIMIT_NAMES}
        tuned = set(tunables)
        tuned.update(_dependent_names(tuned, derived))
        result = []
        for name, entry in entries.items():
            key, rule = f"constraints.{name}.rule", entry.rule.strip()
            self._condition(key, rule, known)
            if not names_in(rule) & tuned:
                raise self._error(key, "depends on no tunable")
            result.append(Constraint(name, rule, entry.reason.strip()))
        return tuple(result)

    def _conditions(
        self, tunables: tuple[Tunable, ...], derived: tuple[Derived, ...], constraints: tuple[Constraint, ...]
    ) -> tuple[Constraint, ...]:
        """Returns the constraints that pin a conditional tunable to its first value while it has no effect."""
        known = {tunable.name for tunable in tunables} | {item.name for item in derived} | PROBLEM_NAMES | LIMIT_NAMES
        taken = {constraint.name for constraint in constraints}
        pins = []
        for tunable in (tunable for tunable in tunables if tunable.when):
            key = f"tunables.{tunable.name}.when"
            self._condition(key, tunable.when, known)
            pin = pinning_constraint(tunable)
            self._condition(key, pin.rule, known)
            if pin.name in taken:
                raise self._error(key, f"implies a constraint {pin.name}, whose name is taken: rename that one")
            pins.append(pin)
        name = cyclic_condition(tunables, derived)
        if name:
            raise self._error(f"tunables.{name}.when", "depends on the tunable itself, directly or through others")
        return tuple(pins)

    def _starts(self, entries: Mapping[str, _Start], tunables: tuple[Tunable, ...]) -> tuple[Start, ...]:
        by_name = {tunable.name: tunable for tunable in tunables}
        result = []
        for name, entry in entries.items():
            for tunable, value in entry.values.items():
                key = f"starts.{name}.values.{tunable}"
                if tunable not in by_name:
                    raise self._error(key, f"is not a tunable of this file{did_you_mean(tunable, by_name)}")
                if not by_name[tunable].holds(value):
                    raise self._error(key, f"{value!r} is not one of its values")
            result.append(Start(name, entry.doc.strip(), tuple(entry.values.items())))
        return tuple(result)

    def _condition(self, key: str, text: str, known: set[str]) -> None:
        """Checks that a text is an expression over known names whose value is true or false."""
        self._expression(key, text, known, later=frozenset())
        body = parse(text).tree.body
        negative = isinstance(body, ast.UnaryOp) and not isinstance(body.op, ast.Not)
        if negative or isinstance(body, ast.BinOp | ast.Call | ast.Constant):
            raise self._error(key, f"is a value, not a condition: `{text}`")

    def _expression(self, key: str, text: str, known: set[str], later: frozenset[str]) -> None:
        try:
            names = names_in(text)
        except ExpressionError as error:
            raise self._error(key, str(error)) from None
        unknown = sorted(names - known)
        if unknown:
            shown = f"in `{' '.join(text.split())}`"
            if unknown[0] in later:
                raise self._error(key, f"{unknown[0]} is defined only later {shown}")
            raise self._error(key, f"{unknown[0]} is unknown {shown}{did_you_mean(unknown[0], known)}")

    def _not_reserved(self, key: str, name: str) -> None:
        if name in RESERVED_NAMES:
            raise self._error(key, f"'{name}' is defined by the prologue of every kernel: use another name")

    def _no_clash(self, tunables: tuple[Tunable, ...], derived: Mapping[str, object]) -> None:
        """Checks the constants that the prologue defines for the values of a categorical: ``Q_LOCATION_DIRECT``."""
        taken = {tunable.name for tunable in tunables} | derived.keys() | RESERVED_NAMES
        for tunable in tunables:
            for value in tunable.values if isinstance(tunable, Categorical) else ():
                constant = f"{tunable.name}_{str(value).upper()}"
                if constant in taken:
                    raise self._error(f"tunables.{tunable.name}.values", f"'{value}' clashes with the name {constant}")
                taken.add(constant)

    def _error(self, key: str, reason: str) -> SearchSpaceError:
        return SearchSpaceError(self._file, key, reason)


def _dependent_names(tuned: set[str], derived: tuple[Derived, ...]) -> set[str]:
    """Returns the derived names that depend on a tunable, directly or through other derived names."""
    found: set[str] = set()
    for item in derived:
        if names_in(item.expr) & (tuned | found):
            found.add(item.name)
    return found
