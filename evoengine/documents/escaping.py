"""Escapes for text of unknown origin, such as a device name of a leaderboard, in generated text and on the terminal.

Each function returns text that cannot end the construct that it is placed in: a comment, a literal, a line. "Printable"
is Python's :meth:`str.isprintable`, which excludes control characters, line separators, bidirectional controls and lone
surrogates.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

_COMMENT_ESCAPES: Final = re.compile(r"""[\\"]|(?<=\*)/|/(?=\*)|\?(?=\?)""")
"""Backslash (continues a line), quote (may end a docstring), ``*/`` and ``/*``, start of a trigraph."""
_MARKDOWN: Final = re.compile(r"[\\`|<\[*]")
_FORMULA: Final = re.compile(r"'*[=+@\t\r\n-]")
"""Start of a cell that a spreadsheet evaluates, and of one that :func:`csv_cell` has already escaped."""
_C_PLAIN: Final = re.compile(r"[ !#-\[\]-~]")
"""ASCII characters that stand for themselves in a C literal; ``?`` is excluded separately, because of trigraphs."""


def printable(text: str) -> str:
    r"""Returns text for one line of a terminal: other characters are spelled as ``\x1b``, ``\n`` or ``\u202e``."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def printable_lines(text: str) -> str:
    """Returns text for several lines of a terminal: as :func:`printable`, but line ends and tabs stay."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def comment(text: str) -> str:
    """Returns text for one line of a comment in C, C++, Python or shell, or of a docstring in triple double quotes.

    White space becomes blanks; other characters that could end the comment are spelled as ``<U+005C>``.
    """
    escaped = _COMMENT_ESCAPES.sub(_code_point, text)
    if escaped.isprintable():
        return escaped
    return "".join(one if one.isprintable() else " " if one.isspace() else f"<U+{ord(one):04X}>" for one in escaped)


def c_string(text: str) -> str:
    """Returns a C or C++ string literal with its quotes: printable ASCII, UTF-8 bytes outside of it in octal."""
    octets = text.encode("utf-8", "backslashreplace")
    return '"' + "".join(_c_character(octet) for octet in octets) + '"'


def markdown(text: str) -> str:
    """Returns text for a paragraph or a table's cell of Markdown, in one line."""
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def csv_cell(text: str) -> str:
    """Returns text for a cell of CSV; an apostrophe in front keeps a spreadsheet from evaluating it as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv_cell(cell: str) -> str:
    """Inverse of :func:`csv_cell`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def python_string(text: str) -> str:
    """Returns a Python string literal with its quotes, in printable ASCII."""
    return ascii(text)


def shell_word(text: str) -> str:
    """Returns one word for a POSIX shell, in one line without control characters."""
    return shlex.quote(printable(text))


def _spelled(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _code_point(found: re.Match[str]) -> str:
    return f"<U+{ord(found[0]):04X}>"


def _c_character(octet: int) -> str:
    character = chr(octet)
    plain = octet < 0x7F and character != "?" and _C_PLAIN.fullmatch(character)
    return character if plain else f"\\{octet:03o}"
