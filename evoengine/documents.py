"""Documents from outside (TOML, JSON, YAML) as typed records: everything is checked before anything is used.

A document is first parsed to plain objects by its format's own library, then converted by msgspec, strictly: no key is
unknown, no number is read from a string, and constraints stand in the record's annotations (``msgspec.Meta``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from evoengine.errors import FileError

_T = TypeVar("_T")
_WHERE: Final = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)


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
        found = _WHERE.match(str(mismatch))
        assert found is not None, "the pattern matches any text"
        inside = (found["path"] or "").removeprefix("$").removeprefix(".")
        dot = "." if key and inside and not inside.startswith("[") else ""
        raise error(file, f"{key}{dot}{inside}", found["reason"]) from None
