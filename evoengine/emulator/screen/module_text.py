"""Screen of the text of a PTX module: characters, directives and declarations outside of instructions.

ptxas has a preprocessor and strings, and inline assembly may contain any text. The screen therefore refuses whatever it
would have to interpret in the same way as ptxas does, and afterwards reads declarations from the plain rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.screen.records import Finding, Rule, Signature

MOST_BYTES: Final = 1 << 24
"""Maximum size of a module: 16 MiB."""

_STRINGS: Final = re.compile(
    r'\s*(?:\.file\s+\d+\s+"(?:(?!//)[^"\\])*"|\.pragma\s+"(?:nounroll|used_bytes_mask \w+)"\s*;)\s*$'
)
"""Lines on which a string may stand."""
_FORBIDDEN: Final = re.compile(r"[^\x20-\x7e\t\n]|[#\\`?\']|/\*|\*/")
_COMMENT: Final = re.compile(r"//[^\n]*")
_HEADER: Final = re.compile(r"\.(?:version\s+\d+\.\d+|target\s+sm_\w+|address_size\s+64|file\s+\d+\s*)\s*$")
_VARIABLE: Final = re.compile(
    r"(?:\.extern\s+\.shared|(?:\.visible\s+|\.weak\s+)?\.(?:global|const|shared))\s+\.align\s+\d+\s+"
    r"\.[bsuf]\d+\s+[\w$]+(?:\[\d*\])*\s*(?:=\s*(?:[\s,{}+-]|\b\d\w*(?:\.\d*)?)+)?$"
)
_ENTRY: Final = re.compile(
    r"(?:\.visible\s+)?\.entry\s+([\w$]+)\s*\([\s\w$.,\[\]]*\)\s*"
    r"(?:\.(?:maxntid|reqntid|minnctapersm|maxnreg)\s+[\d,\s]+)*$"
)
_REGISTERS: Final = re.compile(r"\.reg\b([^;]*)")
_REGISTER_NAMES: Final = re.compile(
    r"\s*\.\w+\s+(?:(?:[A-Za-z_$][\w$]*|%(?:p|r|rs|rd|rq|f|fd|h|hh|b))(?:<\d+>)?|%SPL?)"
    r"(?:\s*,\s*[A-Za-z_$][\w$]*(?:<\d+>)?)*\s*"
)
"""Declarations of registers: no name that begins like that of a special register, which ptxas would read instead."""
_SECTION: Final = re.compile(r"\.section\s+\.debug_\w+\s*$")
_DATA: Final = re.compile(r"[\w$.,:+\-\s]*$")
_BODY_DIRECTIVE: Final = re.compile(
    r"(?:^|[{};:])\s*\.(?!(?:reg|loc|param|pragma|branchtargets|shared|local|const)\b)\w+", re.MULTILINE
)


@dataclass(frozen=True)
class _Piece:
    """A declaration: the text before a body or a semicolon, and the body."""

    head: str
    body: str | None
    line: int


def screen_text(ptx: str, signature: Signature) -> list[Finding]:
    """Returns what is wrong with the text and the declarations of a module."""
    if len(ptx) > MOST_BYTES:
        return [Finding(Rule.TEXT, 1, "", f"the module has more than {MOST_BYTES} bytes")]
    found = list(_wrong_characters(ptx))
    if found:
        return found  # the rest cannot be read reliably
    text = _COMMENT.sub("", ptx)
    text = "\n".join(re.sub(r'"[^"]*"', "", line) if '"' in line else line for line in text.split("\n"))
    entries: list[str] = []
    for piece in _pieces(text):
        found += _declaration(piece, entries)
    if sorted(entries) != sorted(set(signature.entries)):
        names = ", ".join(entries) or "none"
        found.append(Finding(Rule.MODULE, 1, names, f"the entries must be {', '.join(signature.entries)}"))
    return found


def _wrong_characters(ptx: str) -> Iterator[Finding]:
    for number, line in enumerate(ptx.split("\n"), 1):
        code = line if '"' in line else _COMMENT.sub("", line)
        if _FORBIDDEN.search(re.sub(r"^\s*\.(?:file|pragma)\b.*", "", code)):
            yield Finding(Rule.TEXT, number, line.strip()[:120], "a character that has a meaning for a preprocessor")
        elif '"' in code and not _STRINGS.match(line):
            yield Finding(Rule.TEXT, number, line.strip()[:120], "a string where none may stand")


def _pieces(text: str) -> Iterator[_Piece]:
    """Splits a module at the semicolons and bodies of its outermost level, and at the lines of its header."""
    start = depth = body = 0
    head = ""
    for match in re.finditer(r"[{};]|\n", text):
        mark = match.group()
        if mark == "{":
            depth += 1
            if depth == 1:
                head, body = text[start : match.start()], match.end()
        elif mark == "}":
            depth -= 1
            initialiser = depth == 0 and "=" in head
            if depth == 0 and not initialiser:
                yield _Piece(head.strip(), text[body : match.start()], _line(text, start, head))
                start = match.end()
            if depth < 0:
                yield _Piece("}", None, text.count("\n", 0, match.start()) + 1)
                return
        elif depth == 0:
            piece = text[start : match.start()]
            if mark == ";" or _HEADER.match(piece.strip()) or piece.strip().startswith(".file"):
                yield _Piece(piece.strip(), None, _line(text, start, piece))
                start = match.end()
    rest = text[start:].strip().rstrip("\0")
    if rest or depth:
        yield _Piece(rest or "{", None, text.count("\n", 0, start) + 1)


def _line(text: str, start: int, piece: str) -> int:
    return text.count("\n", 0, start + len(piece) - len(piece.lstrip())) + 1


def _declaration(piece: _Piece, entries: list[str]) -> Iterator[Finding]:
    """Yields what is wrong with one declaration; adds the name of an entry to ``entries``."""
    head, text = piece.head, " ".join(piece.head.split())[:120]
    if piece.body is None:
        if head and not (_HEADER.match(head) or _VARIABLE.match(head)):
            yield Finding(Rule.MODULE, piece.line, text, "a declaration that no kernel needs")
    elif _SECTION.match(head):
        if not _DATA.match(piece.body):
            yield Finding(Rule.MODULE, piece.line, text, "a section that is not debugging data")
    elif match := _ENTRY.match(head):
        entries.append(match.group(1))
        for wrong in _BODY_DIRECTIVE.finditer(piece.body):
            line = piece.line + head.count("\n") + piece.body.count("\n", 0, wrong.end())
            yield Finding(Rule.MODULE, line, wrong.group().strip(), "a directive that no kernel needs")
        for declared in _REGISTERS.finditer(piece.body):
            if not _REGISTER_NAMES.fullmatch(declared.group(1)):
                line = piece.line + head.count("\n") + piece.body.count("\n", 0, declared.start())
                yield Finding(
                    Rule.MODULE, line, declared.group().strip()[:120], "a name of a register that no kernel needs"
                )
    elif ".func" in head:
        yield Finding(Rule.MODULE, piece.line, text, "a function: all calls must be inlined")
    else:
        yield Finding(Rule.MODULE, piece.line, text, "a declaration that no kernel needs")
