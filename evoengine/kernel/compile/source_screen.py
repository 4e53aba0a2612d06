"""Screen of generated CUDA C++ before it is compiled: directives, includes, and what reads the compiler's machine.

What the code may do is decided by its PTX, where macros can hide nothing. The source is screened for what happens while
it is compiled: NVRTC opens any file that a source includes. Lines are joined and comments removed as a compiler does;
spellings that compilers read in different ways (trigraphs, digraphs, raw strings, separators of digits) are refused.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

INCLUDES: Final = ("mma.h",)
"""Headers that the shipped templates include; no other can be included."""
MOST_CHARACTERS: Final = 1 << 20

_TEXT: Final = re.compile(r"[^\x20-\x7e\t\n\u0080-\U0010ffff]")
_TRIGRAPH: Final = re.compile(r"\?\?[=/'()!<>-]")
_RAW_STRING: Final = re.compile(r'\b(?:u8|[uUL])?R"')
_SPELLINGS: Final = {
    "a digraph": re.compile(r"%:|<%|%>|<:|:>"),
    "token pasting": re.compile(r"##"),
}
_SPLICE: Final = re.compile(r"\\\n")
_BLANK_SPLICE: Final = re.compile(r"\\[ \t]+\n")
TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|\.?\d(?:[eEpP][+-]|[\w.])*|[A-Za-z_$]\w*""",
    re.ASCII | re.DOTALL,
)
"""Comments, texts, characters, numbers and names of a source without :func:`ambiguous_spelling`."""
_AMBIGUOUS: Final = re.compile(
    rf"""(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*')|{TOKEN.pattern}|(?P<character>["'\\]|[^\x00-\x7f])""", TOKEN.flags
)
_DIRECTIVE: Final = re.compile(r"^[ \t]*#[ \t]*(\w*)[ \t]*(.*)$", re.MULTILINE)
_UNROLL: Final = re.compile(r"unroll(?:[ \t]+[\w:]+)?[ \t]*$")
_MACRO: Final = re.compile(r"[A-Za-z_]\w*(?:\([\w, ]*\))?(?:[ \t]|$)")
_CONDITIONS: Final = frozenset(("if", "ifdef", "ifndef", "elif", "else", "endif", "undef"))
_IDENTIFIERS: Final = re.compile(
    r"\b(?:__has_include(?:_next)?|__has_embed|_Pragma|__pragma|__DATE__|__TIME__|__TIMESTAMP__|__FILE__)\b"
)


class SourceRule(enum.Enum):
    """Rule that a source violates."""

    TEXT = "text"
    """Control characters, or more text than any kernel has."""
    SPELLING = "spelling"
    """A spelling that compilers read in different ways."""
    DIRECTIVE = "directive"
    """A preprocessor directive that no template uses."""
    INCLUDE = "include"
    """An include other than that of a permitted header by its plain name."""
    IDENTIFIER = "identifier"
    """A name that reads the compiler's machine, its clock or its state, or an undocumented function."""


@dataclass(frozen=True)
class SourceFinding:
    """One violation."""

    rule: SourceRule
    line: int
    """Line of the source, from 1, with continued lines joined."""
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule.value}: line {self.line}: {self.reason}: {self.text}"


def screen_source(text: str) -> tuple[SourceFinding, ...]:
    """Returns the violations of a source, in the order of the rules; none if it may be compiled."""
    if len(text) > MOST_CHARACTERS:
        return (SourceFinding(SourceRule.TEXT, 1, "", f"it has more than {MOST_CHARACTERS} characters"),)
    wrong = _TEXT.search(text)
    if wrong:
        return (_finding(SourceRule.TEXT, text, wrong.start(), repr(wrong.group()), "a control character"),)
    joined = _SPLICE.sub("", text)
    unclear = ambiguous_spelling(joined)
    if unclear is not None:  # what looks like a comment after it may be code
        reason = "a character that compilers read differently"
        return (_finding(SourceRule.SPELLING, joined, unclear.start(), unclear.group(), reason),)
    code = TOKEN.sub(_blank, joined)
    return (*_spellings(text, code), *_directives(code))


def ambiguous_spelling(text: str) -> re.Match[str] | None:
    """Finds the first character after which compilers may disagree about where texts and comments begin.

    It is a quote without its other half in the line, a quote in a number (NVRTC reads ``1'0'`` as a number, but in a
    skipped ``#if`` as a character), or a backslash or a letter outside of ASCII that is in no text and no comment.
    """
    return next((found for found in _AMBIGUOUS.finditer(text) if found["number"] or found["character"]), None)


def _spellings(text: str, code: str) -> Iterator[SourceFinding]:
    """Yields wrong spellings: trigraphs and continued lines anywhere, the others outside of comments and texts."""
    for pattern, name in ((_TRIGRAPH, "a trigraph"), (_BLANK_SPLICE, "a continued line with blanks at its end")):
        found = pattern.search(text)
        if found:
            yield _finding(SourceRule.SPELLING, text, found.start(), found.group().strip(), name)
    raw = _RAW_STRING.search(code)
    if raw:
        yield _finding(SourceRule.SPELLING, code, raw.start(), raw.group(), "a raw string")
    bare = TOKEN.sub(lambda match: "''" if match.group()[0] in "\"'" else match.group(), code)
    for name, pattern in _SPELLINGS.items():
        found = pattern.search(bare)
        if found:
            yield _finding(SourceRule.SPELLING, bare, found.start(), found.group(), name)


def _directives(code: str) -> Iterator[SourceFinding]:
    """Yields wrong directives and names."""
    for match in _DIRECTIVE.finditer(code):
        name, rest = match.groups()
        rule = _directive_rule(name, rest.strip())
        if rule is not None:
            shown = " ".join(match.group().split())[:80]
            yield _finding(rule, code, match.start(), shown, "not a directive that templates use")
    for match in _IDENTIFIERS.finditer(code):
        reason = "a name that generated code may not use"
        yield _finding(SourceRule.IDENTIFIER, code, match.start(), match.group(), reason)


def _blank(match: re.Match[str]) -> str:
    """Replaces a comment by a space and its line breaks; texts stay, because includes and assembly are texts."""
    text = match.group()
    return " " + "\n" * text.count("\n") if text[0] == "/" else text


def _directive_rule(name: str, rest: str) -> SourceRule | None:
    if name == "include":
        return None if rest in {f"<{header}>" for header in INCLUDES} else SourceRule.INCLUDE
    if name == "pragma":
        return None if _UNROLL.match(rest) else SourceRule.DIRECTIVE
    if name == "define":
        return None if _MACRO.match(rest) else SourceRule.DIRECTIVE
    return None if name in _CONDITIONS else SourceRule.DIRECTIVE


def _finding(rule: SourceRule, text: str, position: int, shown: str, reason: str) -> SourceFinding:
    return SourceFinding(rule, text.count("\n", 0, position) + 1, shown, reason)
