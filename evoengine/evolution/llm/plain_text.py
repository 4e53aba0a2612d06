"""Text of unknown origin without characters that are invisible or control a terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

_KEPT: Final = "\n\t"
_REMOVED: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Control, format (bidirectional and zero-width among them), private, unassigned, surrogate, separators."""


def plain_text(text: str) -> str:
    """Returns text with line feeds as its only line ends and without control and format characters."""
    unified = text.replace("\r\n", "\n").replace("\r", "\n")
    if unified.isascii() and unified.replace("\n", " ").replace("\t", " ").isprintable():
        return unified
    return "".join(one for one in unified if one in _KEPT or unicodedata.category(one) not in _REMOVED)
