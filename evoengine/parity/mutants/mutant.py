"""What a mutant is: a kernel that is known to be wrong, made from a good one by changing its rendered text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evoengine.errors import DefectError
from evoengine.kernel.records import Source
from evoengine.model import Problem, Value


@dataclass(frozen=True)
class Edit:
    """A change of a rendered source."""

    old: str
    new: str
    times: int = 1
    """How often the old text occurs; all of them are replaced."""


@dataclass(frozen=True)
class Setup:
    """A problem and a config that make a mistake matter: without it the kernel passes."""

    problem: Problem
    overrides: Mapping[str, Value]
    """What differs from the base config."""


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    breaks: str
    """The part of the kernel that it is in."""
    setup: str
    """Name of the setup that it is made from."""
    edits: tuple[Edit, ...]
    hazard: bool = False
    """A GPU may well run it to the right numbers: a race that is won, a read whose value does not matter."""


def mutate(source: Source, edits: tuple[Edit, ...]) -> Source:
    """Changes a rendered source.

    Raises:
        DefectError: an old text does not occur as often as its edit says. The mutant no longer fits the template, so
            that nothing it would show can be believed.
    """
    text = source.text
    for edit in edits:
        found = text.count(edit.old)
        if found != edit.times:
            raise DefectError(
                f"the mutant no longer fits the template: {edit.old!r} occurs {found} times, not {edit.times}: "
                "bring its edit up to date"
            )
        text = text.replace(edit.old, edit.new)
    if text == source.text:
        return source
    digest = hashlib.sha256(f"{source.source_hash}/{text}".encode()).hexdigest()
    return replace(source, text=text, source_hash=digest[:16])
