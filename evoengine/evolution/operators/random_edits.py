"""Control: random changes in the regions that a model may change.

A model that finds no more than this operator does has no merit of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from evoengine.evolution.operators.region_edits import edit_of
from evoengine.evolution.records import Context, Proposal
from evoengine.model import Edit, Patch, Region

_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,20}(?:\.\d+f?)?(?![\w.])")
"""Decimal number whose integer part may have 64 bits: Python refuses to convert very long ones."""
_SWAPS: Final = (
    *(("+", "-"), ("*", "/"), ("<", "<="), (">", ">="), ("&&", "||"), ("fmaxf", "fminf"), ("++", "--")),
    *(("true", "false"), ("+=", "-="), ("unroll 1", "unroll"), ("==", "!=")),
)
_MOST_TRIES: Final = 50
_MOST_EDITS: Final = 2


class RandomEdits:
    """Makes patches of one or two random changes: a line deleted, moved or repeated, a number or operator changed."""

    name = "random"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one proposal; none if the parent has no region with a line to change."""
        regions = [region for region in context.regions if any(map(_is_code, region.text.splitlines()))]
        if not regions:
            return ()
        wanted = rng.randint(1, _MOST_EDITS)
        done: list[tuple[Region, Edit, str]] = []
        chosen = rng.choices(regions, [len(region.text) for region in regions], k=_MOST_TRIES)
        for region in chosen:
            change = rng.choice(_CHANGES)
            text = change(region.text, rng)
            edit = None if text is None else edit_of(region, text, context.regions)
            if edit is not None and all(region is not other for other, _, _ in done):
                done.append((region, edit, change.__name__.strip("_").replace("_", " ")))
            if len(done) == wanted:
                break
        if not done:
            return ()
        summary = "; ".join(f"{what} in region {region.name} of {region.file}" for region, _, what in done)
        patch = Patch(tuple(edit for _, edit, _ in done), summary=f"random: {summary}")
        return (Proposal(self.name, (context.parent.family,), patch),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: a random change has no second turn."""
        return None


def _is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith(("//", "#", "}")) and text != "{"


def _code_lines(lines: Sequence[str], ends: str = "") -> list[int]:
    """Returns the numbers of lines of code; with ``ends`` only of those that end with it."""
    code = (line.split("//")[0].rstrip() for line in lines)
    return [number for number, text in enumerate(code) if _is_code(text) and text.endswith(ends)]


def _deleted_line(text: str, rng: random.Random) -> str | None:
    lines = text.splitlines(keepends=True)
    found = [number for number in _code_lines(lines, ";") if _is_balanced(lines[number])]
    if not found:
        return None
    number = rng.choice(found)
    return "".join(lines[:number] + lines[number + 1 :])


def _moved_line(text: str, rng: random.Random) -> str | None:
    lines = text.splitlines(keepends=True)
    found = [number for number in _code_lines(lines, ";") if number and _is_balanced(lines[number])]
    if not found:
        return None
    number = rng.choice(found)
    lines[number - 1], lines[number] = lines[number], lines[number - 1]
    return "".join(lines)


def _repeated_line(text: str, rng: random.Random) -> str | None:
    lines = text.splitlines(keepends=True)
    found = [number for number in _code_lines(lines, ";") if _is_balanced(lines[number])]
    if not found:
        return None
    number = rng.choice(found)
    return "".join(lines[: number + 1] + lines[number:])


def _changed_number(text: str, rng: random.Random) -> str | None:
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    number = match[0]
    if "." in number:
        new = f"{float(number.rstrip('f')) * rng.choice((0.5, 2.0)):.8f}{'f' * number.endswith('f')}"
    else:
        new = str(rng.choice((int(number) + 1, max(int(number) - 1, 0), 2 * int(number), int(number) // 2)))
    return text[: match.start()] + new + text[match.end() :]


def _changed_operator(text: str, rng: random.Random) -> str | None:
    a, b = rng.choice(_SWAPS)
    if rng.random() < 0.5:
        a, b = b, a
    pattern = re.compile(rf"(?<![\w+*/<>=&|!-]){re.escape(a)}(?![\w+*/<>=&|!-])")
    found = list(pattern.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return text[: match.start()] + b + text[match.end() :]


def _is_balanced(line: str) -> bool:
    return all(line.count(one) == line.count(other) for one, other in ("()", "[]", "{}"))


_CHANGES: Final[tuple[Callable[[str, random.Random], str | None], ...]] = (
    _deleted_line,
    _moved_line,
    _repeated_line,
    _changed_number,
    _changed_operator,
)
