"""Mutant: a kernel with one known mistake, made by editing the rendered source of a correct kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evoengine.errors import DefectError
from evoengine.kernel.records import Source
from evoengine.model import Problem, Value


@dataclass(frozen=True)
class MutantEdit:
    """Replacement of text in a rendered source."""

    old: str
    new: str
    times: int = 1
    """Number of occurrences of ``old``, all of which are replaced."""


@dataclass(frozen=True)
class MutantSetup:
    """Correct kernel that mutants are made from: a problem and a config on which their mistakes have an effect."""

    family: str
    problem: Problem
    values: Mapping[str, Value]
    """Values of all tunables."""


@dataclass(frozen=True)
class Mutant:
    """One mistake in the kernel of one setup."""

    name: str
    breaks: str
    """Part of the kernel with the mistake."""
    setup: str
    """Name of the setup that the mutant is made from."""
    edits: tuple[MutantEdit, ...]
    hazard: bool = False
    """Whether a GPU may compute correct results all the same: a race, or a read whose value has no effect."""


def mutate(source: Source, edits: tuple[MutantEdit, ...]) -> Source:
    """Applies edits to a rendered source, in order.

    Raises:
        DefectError: An old text does not occur as often as its edit says, since the template has changed, or the edits
            change nothing. The mutant must be updated before it shows anything about the gate.
    """
    text = source.text
    for edit in edits:
        found = text.count(edit.old)
        if found != edit.times:
            raise DefectError(
                f"the mutant does not fit the template: {edit.old!r} occurs {found} times, not {edit.times}: "
                "update its edit"
            )
        text = text.replace(edit.old, edit.new)
    if text == source.text:
        if edits:
            raise DefectError(f"the mutant changes nothing: update its edit of {edits[0].old!r}")
        return source
    digest = hashlib.sha256(f"{source.source_hash}/{text}".encode()).hexdigest()
    return replace(source, text=text, source_hash=digest[:16])
