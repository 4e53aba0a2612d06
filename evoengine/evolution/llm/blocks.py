"""Parser of SEARCH/REPLACE blocks in a reply.

A block names its file on a line before it, and each part consists of whole lines::

    FILE: partials/flash/softmax_step.cuh
    <<<<<<< SEARCH
    text to replace
    =======
    new text
    >>>>>>> REPLACE

Prose and code fences around blocks are ignored. Nothing is guessed: a block that is cut off, nested or without a file
makes the whole reply unusable, with a reason that the model can act on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evoengine.documents.escaping import printable
from evoengine.model import Edit

MOST_EDITS: Final = 12
"""Maximum number of blocks in a reply."""
MOST_CHARACTERS: Final = 1 << 17
"""Maximum size of a reply that is parsed."""

_SEARCH: Final = re.compile(r"<{5,9} ?SEARCH\s*")
_DIVIDER: Final = re.compile(r"={5,9}\s*")
_REPLACE: Final = re.compile(r">{5,9} ?REPLACE\s*")
_FILE: Final = re.compile(r"[#*\s`]*(?:FILE|File|file)[*`]*:[*`\s]*(?P<path>[^\s`*]+)[\s`*]*")
_BARE_PATH: Final = re.compile(r"[#*\s`]*(?P<path>[\w./-]+\.(?:cuh|jinja))[\s`*:]*")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_LONGEST_NAME: Final = 200
_SHOWN: Final = 80


class BlockError(ValueError):
    """A reply whose blocks cannot be used; the message is the reason, in one line."""


@dataclass
class _Block:
    number: int
    file: str
    search: list[str]
    replace: list[str]
    has_divider: bool = False

    def edit(self) -> Edit:
        """Returns the block as an edit; lines keep their ends, so that a deletion leaves no empty line."""
        search, replace = (_text(_without_fence(lines)) for lines in (self.search, self.replace))
        if not search.strip():
            raise BlockError(f"block {self.number}: the SEARCH part is empty: copy the lines to replace")
        if search == replace:
            raise BlockError(f"block {self.number}: SEARCH and REPLACE are the same")
        return Edit(self.file, search, replace)


def parse_blocks(reply: str) -> tuple[Edit, ...]:
    """Parses all blocks of a reply.

    Args:
        reply: Text of the reply, with line feeds as line ends.

    Raises:
        BlockError: There is no block, or one is malformed.
    """
    if len(reply) > MOST_CHARACTERS:
        raise BlockError(f"the reply has more than {MOST_CHARACTERS} characters: answer with the changed lines only")
    edits: list[Edit] = []
    block: _Block | None = None
    file = ""
    for line in reply.replace("\r\n", "\n").split("\n"):
        if block is None:
            file = _named_file(line) or file
            if _SEARCH.fullmatch(line):
                block = _Block(len(edits) + 1, _checked_path(file, len(edits) + 1), [], [])
            elif _REPLACE.fullmatch(line):
                raise BlockError(f"block {len(edits) + 1}: a REPLACE marker without a SEARCH marker")
        elif _REPLACE.fullmatch(line) and block.has_divider:
            edits.append(block.edit())
            block = None
        else:
            _extend(block, line)
        if len(edits) > MOST_EDITS:
            raise BlockError(f"the reply has more than {MOST_EDITS} blocks: change less at once")
    if block is not None:
        missing = ">>>>>>> REPLACE" if block.has_divider else "======="
        raise BlockError(f"block {block.number} is cut off: it has no line '{missing}'")
    if not edits:
        raise BlockError("the reply has no SEARCH/REPLACE block")
    return tuple(edits)


def outside_blocks(reply: str) -> str:
    """Returns the lines of a reply that are not part of a block."""
    kept: list[str] = []
    inside = False
    for line in reply.split("\n"):
        if _SEARCH.fullmatch(line):
            inside = True
        elif inside and _REPLACE.fullmatch(line):
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def _extend(block: _Block, line: str) -> None:
    if _SEARCH.fullmatch(line) or _REPLACE.fullmatch(line):
        raise BlockError(f"block {block.number}: a marker inside the block: end it before the next one begins")
    if _DIVIDER.fullmatch(line):
        if block.has_divider:
            raise BlockError(f"block {block.number}: more than one line '======='")
        block.has_divider = True
    else:
        (block.replace if block.has_divider else block.search).append(line)


def _named_file(line: str) -> str:
    """Returns the path in a line that names a file; empty for other lines."""
    if len(line) > _LONGEST_NAME:
        return ""
    named = _FILE.fullmatch(line) or _BARE_PATH.fullmatch(line)
    return named["path"] if named else ""


def _checked_path(path: str, number: int) -> str:
    if not path:
        raise BlockError(f"block {number} names no file: write 'FILE: path' on the line before it")
    if not _PATH.fullmatch(path) or len(path) > _SHOWN:
        raise BlockError(f"block {number}: '{printable(path)[:_SHOWN]}' is not a path below templates/")
    return path


def _without_fence(lines: list[str]) -> list[str]:
    is_fenced = len(lines) >= 2 and _FENCE.match(lines[0]) and _FENCE.fullmatch(lines[-1])
    return lines[1:-1] if is_fenced else lines


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
