"""Patches of template files: marked regions, and edits that may change the text inside them only.

A region begins with the line ``/*# region NAME #*/`` and ends with ``/*# endregion #*/``, which are comments of the
template language, so that they neither reach a kernel nor change the template hash.

An edit cannot leave its region by a trick of the language: its text may hold no construct of the template language,
which would run on the host, no preprocessor directive but ``#pragma unroll``, no unfinished comment, no quote that
compilers read differently, and its region must keep its brackets balanced. What the text computes is checked later, by
the compiler, the screens and the gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from evoengine.errors import PatchError
from evoengine.kernel.compile.source_screen import TOKEN, ambiguous_spelling
from evoengine.model import Edit, Region

_BEGIN: Final = re.compile(r"^[ \t]*/\*# region ([a-z][a-z0-9_ ]*?) #\*/[ \t]*\n", re.MULTILINE)
_END: Final = re.compile(r"^[ \t]*/\*# endregion #\*/[ \t]*(?:\n|\Z)", re.MULTILINE)
_MARKER: Final = re.compile(rf"{_BEGIN.pattern}|{_END.pattern}", re.MULTILINE)
_TEMPLATE_TOKENS: Final = ("@{", "}@", "/*%", "%*/", "/*#", "#*/", "//%", "//#")
_OTHER_SPELLINGS: Final = ("??", 'R"', "<%", "%>", "<:", ":>", "%:", "_Pragma")
"""Trigraphs, raw strings, digraphs and directives as operators, which would hide brackets and directives."""
_UNROLL: Final = re.compile(r"^[ \t]*#pragma unroll\b[^\n#]*$", re.MULTILINE)
_PAIRS: Final = {")": "(", "]": "[", "}": "{"}
_MOST_CHARACTERS: Final = 1 << 16
"""Maximum length of the texts of one edit."""
_SHOWN: Final = 60


@dataclass(frozen=True)
class _Span:
    """Region as offsets into its file, without the markers."""

    name: str
    start: int
    stop: int


def without_markers(text: str) -> str:
    """Returns a template's text without the lines that mark regions."""
    return _MARKER.sub("", text)


def regions_of(file: str, text: str) -> tuple[Region, ...]:
    """Returns the marked regions of a template file, in order.

    Args:
        file: Path below ``templates/``, for the result.
        text: Text of the file.

    Raises:
        PatchError: A region is not closed, or a region begins inside another.
    """
    return tuple(
        Region(file, span.name, text[span.start : span.stop], text.count("\n", 0, span.start) + 1)
        for span in _spans(file, text)
    )


def apply_edits(texts: Mapping[str, str], edits: Iterable[Edit]) -> dict[str, str]:
    """Applies edits in order.

    Args:
        texts: Text of each file that edits may change, by path below ``templates/``.
        edits: Edits.

    Returns:
        The texts of the files that changed.

    Raises:
        PatchError: An edit names another file, does not match exactly once inside a region, changes nothing, or holds
            text that could act outside its region.
    """
    changed: dict[str, str] = {}
    for number, edit in enumerate(edits, 1):
        where = f"edit {number} ({edit.file})"
        text = changed.get(edit.file, texts.get(edit.file))
        if text is None:
            raise PatchError(f"{where}: the family has no such file: it has {', '.join(sorted(texts))}")
        changed[edit.file] = _applied(where, text, edit)
    return changed


def _applied(where: str, text: str, edit: Edit) -> str:
    _check_texts(where, edit)
    count = text.count(edit.search)
    if count != 1:
        raise PatchError(f"{where}: the search text {_shown(edit.search)} occurs {count} times, it must occur once")
    start = text.index(edit.search)
    stop = start + len(edit.search)
    span = next((span for span in _spans(where, text) if span.start <= start and stop <= span.stop), None)
    if span is None:
        raise PatchError(f"{where}: the search text {_shown(edit.search)} is not inside one marked region")
    region = text[span.start : start] + edit.replace + text[stop : span.stop]
    _check_region(where, span.name, region)
    return text[: span.start] + region + text[span.stop :]


def _check_texts(where: str, edit: Edit) -> None:
    if not edit.search.strip():
        raise PatchError(f"{where}: the search text is empty")
    if edit.search == edit.replace:
        raise PatchError(f"{where}: the replacement equals the search text")
    if max(len(edit.search), len(edit.replace)) > _MOST_CHARACTERS:
        raise PatchError(f"{where}: texts of an edit have at most {_MOST_CHARACTERS} characters")
    if any(ord(character) < 32 and character not in "\n\t" for character in edit.replace):
        raise PatchError(f"{where}: the replacement has control characters")


def _check_region(where: str, name: str, region: str) -> None:
    """Checks that the new text of a region cannot act on the text outside it."""
    found = next((token for token in _TEMPLATE_TOKENS if token in region), None)
    if found is not None:
        raise PatchError(f"{where}: region '{name}' may not hold '{found}', which belongs to the template language")
    if re.search(r"\\[ \t]*(\n|\Z)", region):
        raise PatchError(f"{where}: region '{name}' may not continue a line by a backslash")
    spelled = next((token for token in _OTHER_SPELLINGS if token in region), None)
    if spelled is not None:
        raise PatchError(f"{where}: region '{name}' may not hold '{spelled}', another spelling of C++")
    unclear = ambiguous_spelling(region)
    if unclear is not None:
        raise PatchError(f"{where}: region '{name}' may not hold {unclear.group()!r}, which compilers read differently")
    code = TOKEN.sub(lambda match: " " if match.group().startswith(("//", "/*")) else match.group(), region)
    if "/*" in code or "*/" in code:
        raise PatchError(f"{where}: region '{name}' would hold an unfinished comment")
    plain = TOKEN.sub(lambda match: '""' if match.group()[0] in "\"'" else match.group(), _UNROLL.sub("", code))
    if "#" in plain:
        raise PatchError(f"{where}: region '{name}' may hold no preprocessor directive but '#pragma unroll'")
    _check_brackets(where, name, plain)


def _check_brackets(where: str, name: str, code: str) -> None:
    open_ones: list[str] = []
    for character in code:
        if character in _PAIRS.values():
            open_ones.append(character)
        elif character in _PAIRS and (not open_ones or open_ones.pop() != _PAIRS[character]):
            raise PatchError(f"{where}: region '{name}' would have an unmatched '{character}'")
    if open_ones:
        raise PatchError(f"{where}: region '{name}' would have an unmatched '{open_ones[-1]}'")


def _spans(where: str, text: str) -> Iterator[_Span]:
    begin: re.Match[str] | None = None
    for marker in _MARKER.finditer(text):
        if marker[1] is not None:
            if begin is not None:
                raise PatchError(f"{where}: region '{marker[1]}' begins inside region '{begin[1]}'")
            begin = marker
        elif begin is None:
            raise PatchError(f"{where}: an endregion without its region")
        else:
            yield _Span(begin[1], begin.end(), marker.start())
            begin = None
    if begin is not None:
        raise PatchError(f"{where}: region '{begin[1]}' has no endregion")


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")
