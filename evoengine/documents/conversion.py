"""Conversion of parsed documents (TOML, JSON, YAML) to typed records, with errors that name file, key and reason.

A document is first parsed to plain objects by the library of its format. msgspec then converts it strictly: unknown
keys are errors, no number is read from a string, and constraints stand in the annotations (``msgspec.Meta``).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from evoengine.documents.escaping import printable
from evoengine.errors import FileError

_T = TypeVar("_T")
_Step = str | int

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
"""String with at least one character that is not a space."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
"""Finite number that is not negative, such as a time, and small enough for a conversion to any other unit."""
LowerName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
FamilyName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*(~[0-9a-f]{8})?\Z")]
"""Name of a kernel family, or of a variant of one."""
UpperName = Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]*\Z")]

_PATTERNS: Final[Mapping[str, str]] = {
    r"\S": "must be a string that is not empty",
    r"^[a-z][a-z0-9_]*\Z": "{value} is not a lower-case name (letters, digits, _)",
    r"^[a-z][a-z0-9_]*(~[0-9a-f]{8})?\Z": "{value} is not a lower-case name (letters, digits, _)",
    r"^[A-Z][A-Z0-9_]*\Z": "{value} is not an UPPER_CASE identifier",
}
_TYPES: Final[Mapping[str, str]] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "list": "a list",
    "object": "a table",
    "dict": "a table",
    "null": "nothing",
}
_MESSAGE: Final = re.compile(r"^(?P<reason>.*?)(?: - at (?P<in_key>`key` in )?`\$?\.?(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[\]]+)")
_LONGEST_MESSAGE: Final = 2000
_MOST_SHOWN: Final = 60
"""Maximum number of characters of a value or key in an error."""
_UNNAMED: Final = "..."
"""msgspec's placeholder for the key of a mapping."""


def convert_document(content: object, into: type[_T], file: Path | str, error: type[FileError], key: str = "") -> _T:
    """Converts parsed content to a record.

    Args:
        content: Plain objects, as a parser of TOML, JSON or YAML returns them.
        into: Record type: a dataclass, a ``msgspec.Struct`` or any type that msgspec converts to.
        file: Name of the document, for messages.
        error: Type of the error to raise.
        key: Position of ``content`` in the document; empty for the whole document.

    Raises:
        FileError: The content does not match; the error is of type ``error`` and names file, key and reason.
    """
    try:
        return msgspec.convert(content, into, strict=True)
    except msgspec.ValidationError as mismatch:
        try:
            steps, reason = _explain(content, into, str(mismatch))
        except (LookupError, TypeError, AssertionError):  # text of the document imitates the position in the message
            steps, reason = [], _shortened(printable(str(mismatch)), 4 * _MOST_SHOWN)
        raise error(file, key_path((key, *steps) if key else steps), reason) from None


def key_path(steps: Iterable[_Step]) -> str:
    """Spells a position in a document: ``tunables.BLOCK_M.values[2]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_shortened(printable(str(step)))}" for step in steps)
    return text.removeprefix(".")


def _explain(content: object, into: type, message: str) -> tuple[list[_Step], str]:
    """Translates a message of msgspec to a position and a reason."""
    found = _MESSAGE.match(message[:_LONGEST_MESSAGE])
    assert found is not None, "the pattern matches any text"
    path = _STEP.findall(found["path"] or "")
    wanted = [int(index) if index.isdigit() else index or name for index, name in path]
    if found["in_key"]:
        wanted.append(_UNNAMED)
    steps = _named(content, into, wanted, message)
    reason = found["reason"]
    if field := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return [*steps, field[1]], "is missing"
    if field := re.fullmatch(r"Object contains unknown field `(.*)`", reason):
        return [*steps, field[1]], f"unknown key: use {', '.join(_keys(_type_at(into, content, steps)))}"
    value = steps[-1] if found["in_key"] else _value_at(content, steps)
    return steps, _plain(reason, value, into, content, steps)


def _plain(reason: str, value: object, into: type, content: object, steps: Sequence[_Step]) -> str:
    if pattern := re.fullmatch(r"Expected `str` matching regex '(.*)'", reason):
        known = _PATTERNS.get(pattern[1].replace("\\\\", "\\"))
        return known.format(value=_shown(value)) if known else f"{_shown(value)} does not match {pattern[1]}"
    if re.match(r"Invalid (enum )?value", reason):
        choices = _choices(_type_at(into, content, steps[:-1]), _type_at(into, content, steps), steps)
        return f"unknown value {_shown(value)}: use one of {', '.join(choices)}"
    if length := re.fullmatch(r"Expected `(array|object|str)` of length ([<>]=) (\d+)", reason):
        count = len(value) if isinstance(value, Sequence | Mapping) else 0
        bound = "at least" if length[2] == ">=" else "at most"
        return f"must have {bound} {length[3]} entries, not {count}" if count else "must not be empty"
    if bounded := re.fullmatch(r"Expected `(int|float)` ([<>=]+ .*)", reason):
        return f"must be {bounded[2].removesuffix('.0')}, not {_shown(value)}"
    if mismatch := re.fullmatch(r"Expected `(.*)`, got `(.*)`", reason):
        expected = " or ".join(_TYPES.get(name, name) for name in mismatch[1].split(" | ") if name != "null")
        got = _TYPES.get(mismatch[2], mismatch[2])
        shown = f" {_shown(value)}" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        return f"expected {expected}, got {got}{shown}"
    return _shortened(printable(reason[:1].lower() + reason[1:]), 4 * _MOST_SHOWN)


def _shown(value: object) -> str:
    """Returns a value for an error: printable, and not longer than a line holds."""
    return _shortened(repr(value))


def _shortened(text: str, most: int = _MOST_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _named(content: object, into: type, path: Sequence[_Step], message: str) -> list[_Step]:
    """Replaces each placeholder in a path by the first key that alone causes the same message."""
    steps: list[_Step] = []
    for step in path:
        if step == _UNNAMED:
            narrowed = next(_narrowed(content, into, steps, message), None)
            if narrowed is None:
                break
            content, step_key = narrowed, next(iter(_mapping_at(narrowed, steps)))
            steps.append(step_key)
        else:
            steps.append(step)
    return steps


def _narrowed(content: object, into: type, steps: Sequence[_Step], message: str) -> Iterator[object]:
    """Yields copies of a document with one entry of a mapping each, if they cause the message."""
    for key, value in _mapping_at(content, steps).items():
        narrowed = _replaced(content, steps, {key: value})
        if _message(narrowed, into) == message:
            yield narrowed


def _mapping_at(content: object, steps: Sequence[_Step]) -> Mapping[_Step, object]:
    holder = _value_at(content, steps)
    assert isinstance(holder, Mapping), "msgspec abbreviates keys of mappings only"
    return holder


def _message(content: object, into: type) -> str:
    try:
        msgspec.convert(content, into, strict=True)
    except msgspec.ValidationError as mismatch:
        return str(mismatch)
    return ""


def _replaced(content: Any, steps: Sequence[_Step], value: object) -> object:
    """Returns a copy of nested content with another value at a position."""
    if not steps:
        return value
    changed = copy.copy(content)
    changed[steps[0]] = _replaced(content[steps[0]], steps[1:], value)
    return changed


def _value_at(content: Any, steps: Sequence[_Step]) -> object:
    for step in steps:
        content = content[step]
    return content


def _type_at(into: type, content: Any, steps: Sequence[_Step]) -> inspect.Type:
    """Returns the type that a position of a document must have; a union is resolved by its tag if possible."""
    node = _variant(inspect.type_info(into), content)
    for step in steps:
        if isinstance(node, inspect.StructType | inspect.DataclassType):
            node = next((field.type for field in node.fields if field.encode_name == step), inspect.AnyType())
        elif isinstance(node, inspect.DictType):
            node = node.value_type
        elif isinstance(node, inspect.CollectionType):
            node = node.item_type
        elif isinstance(node, inspect.TupleType) and isinstance(step, int):
            node = node.item_types[step]
        content = content[step]
        node = _variant(node, content)
    return node


def _variant(node: inspect.Type, content: object) -> inspect.Type:
    if not isinstance(node, inspect.UnionType):
        return node
    records = [one for one in node.types if isinstance(one, inspect.StructType | inspect.DataclassType)]
    if len(records) == 1 or not isinstance(content, Mapping):
        return records[0] if len(records) == 1 else node
    tagged = (one for one in records if isinstance(one, inspect.StructType) and one.tag_field)
    return next((one for one in tagged if content.get(str(one.tag_field)) == one.tag), node)


def _keys(node: inspect.Type) -> list[str]:
    if not isinstance(node, inspect.StructType | inspect.DataclassType):
        return []
    tag = [node.tag_field] if isinstance(node, inspect.StructType) and node.tag_field else []
    return [*tag, *(field.encode_name for field in node.fields)]


def _choices(holder: inspect.Type, node: inspect.Type, steps: Sequence[_Step]) -> list[str]:
    """Returns the allowed values of a position that is a tag, an enum or a literal.

    Args:
        holder: Type of the table or list that holds the position.
        node: Type of the position itself.
        steps: Position; its last step may be the tag of ``holder``.
    """
    records = [one for one in _alternatives(holder) if isinstance(one, inspect.StructType)]
    tags = [str(one.tag) for one in records if one.tag_field in steps[-1:]]
    enums = [
        str(member.value) for one in _alternatives(node) if isinstance(one, inspect.EnumType) for member in one.cls
    ]
    literals = [
        str(value) for one in _alternatives(node) if isinstance(one, inspect.LiteralType) for value in one.values
    ]
    integers = ["an integer" for one in _alternatives(node) if isinstance(one, inspect.IntType)]
    return tags + enums + literals + integers


def _alternatives(node: inspect.Type) -> tuple[inspect.Type, ...]:
    return node.types if isinstance(node, inspect.UnionType) else (node,)
