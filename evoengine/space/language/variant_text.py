"""Search-space file of a variant: the family's text with the tunables that a patch adds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from evoengine.errors import PatchError
from evoengine.model import NewTunable, Value, Variant

_FAMILY: Final = re.compile(r'^family\s*=\s*"[^"\n]*"', re.MULTILINE)
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_MOST_TUNABLES: Final = 8
_RULE: Final = "added_{name}"
"""Name of the constraint of an added tunable."""


def with_tunables(text: str, variant: Variant) -> str:
    """Returns the text of a variant's file; names and expressions in it are checked when it is parsed.

    Args:
        text: Text of the family's file.
        variant: Variant with the tunables to add.

    Raises:
        PatchError: There are too many tunables, or one has no valid name, values or default.
    """
    tunables = variant.patch.tunables
    if len(tunables) > _MOST_TUNABLES:
        raise PatchError(f"a variant adds at most {_MOST_TUNABLES} tunables, not {len(tunables)}")
    named = _FAMILY.sub(f'family = "{variant.name}"', text, count=1)
    return "\n\n".join((named.rstrip(), *(_table(tunable) for tunable in tunables))) + "\n"


def _table(tunable: NewTunable) -> str:
    """Returns the tables of one tunable and of its constraint."""
    name, values = tunable.name, tunable.values
    if not _NAME.match(name):
        raise PatchError(f"tunable {name!r}: the name must be an UPPER_CASE identifier")
    if len(values) < 2 or len({type(value) for value in values}) != 1:
        raise PatchError(f"tunable {name}: give at least two values of one type")
    if not any(value == tunable.default and type(value) is type(tunable.default) for value in values):
        raise PatchError(f"tunable {name}: the default {tunable.default!r} is not one of its values")
    if "\\" in tunable.doc or "??" in tunable.doc:  # a line comment of the kernel, which these could continue
        raise PatchError(f"tunable {name}: the doc may not hold a backslash or '??'")
    lines = [
        f"[tunables.{name}]",
        *_kind(name, values),
        'unit = "value"',
        f"doc = {_quoted(tunable.doc or f'tunable {name} that a patch added')}",
    ]
    if tunable.constraint:
        reason = tunable.reason or f"the patch that added {name} needs it"
        rule = f"[constraints.{_RULE.format(name=name.lower())}]"
        lines += ["", rule, f"rule = {_quoted(tunable.constraint)}", f"reason = {_quoted(reason)}"]
    return "\n".join(lines)


def _kind(name: str, values: Sequence[Value]) -> list[str]:
    if isinstance(values[0], bool):
        if sorted(values) != [False, True]:
            raise PatchError(f"tunable {name}: the values of a boolean are False and True")
        return ['kind = "boolean"']
    if isinstance(values[0], int):
        return ['kind = "ordinal"', f"values = {json.dumps(sorted(values))}"]
    return ['kind = "categorical"', f"values = {json.dumps(list(values))}"]


def _quoted(text: str) -> str:
    """Returns a basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(" ".join(text.split()))
