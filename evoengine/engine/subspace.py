"""Restriction of a space to some values of tunables, and its division among several GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.engine.families import Families
from evoengine.errors import UsageError
from evoengine.landscape.landscape import MAX_CONFIGS
from evoengine.model import Problem, Value
from evoengine.space.explicit_space import every_nth, with_rows
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

_SHARE: Final = re.compile(r"([0-9]{1,12})/([0-9]{1,12})")


@dataclass(frozen=True)
class Share:
    """One of ``of`` recordings that hold the whole space together: every ``of``-th config, in the space's order."""

    number: int
    """Number of this part, from 1."""
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parses a text like ``1/2``.

        Raises:
            UsageError: The text has another form, or there is no such part.
        """
        found = _SHARE.fullmatch(text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(f"--part {text}: give one of several parts, such as 1/2")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE: Final = Share(1, 1)


def countable(spaces: FamilySpaces) -> int:
    """Counts the valid configs.

    Raises:
        UsageError: The number is only estimated, or too large to record.
    """
    count = spaces.count
    if not count.exact or count.value > MAX_CONFIGS:
        raise UsageError(f"{count.of('valid configs')} are too many for --all: give --count, or --only NAME=VALUE")
    return count.value


def shared(families: Families, share: Share) -> Families:
    """Selects one part of each family's configs.

    Raises:
        UsageError: There are too many configs to divide, or too few.
    """
    if share == WHOLE:
        return families
    countable(FamilySpaces(tuple(family.valid for family in families.taken)))
    taken = []
    for family in families.taken:
        valid = every_nth(family.valid, share.number - 1, share.of)
        if valid is None:
            raise UsageError(f"--part {share}: family {family.name} has only {family.valid.size} valid configs")
        taken.append(replace(family, valid=valid))
    return replace(families, taken=tuple(taken))


def restricted(families: Families, problem: Problem, target: Target, only: tuple[str, ...]) -> Families:
    """Restricts tunables to some of their values.

    Args:
        families: Families to restrict.
        problem: Problem.
        target: GPU.
        only: Restrictions ``NAME=VALUE,VALUE``; those of one tunable are joined.

    Raises:
        UsageError: No family has the tunable, or it does not have the value.
        SearchSpaceError: No config is left.
    """
    if not only:
        return families
    wanted: dict[str, list[str]] = {}
    for name, values in map(_tunable_and_values, only):
        wanted.setdefault(name, []).extend(values)
    known = {tunable.name for family in families.taken for tunable in family.space.tunables}
    for name in sorted(wanted.keys() - known):
        raise UsageError(f"--only {name}: no family has such a tunable; 'space' lists them")
    taken = []
    for family in families.taken:
        overrides = {
            tunable.name: [_value(tunable, text) for text in wanted[tunable.name]]
            for tunable in family.space.tunables
            if tunable.name in wanted
        }
        taken.append(replace(family, valid=family.space.build(problem, target, overrides=overrides)))
    return replace(families, taken=tuple(taken))


def _tunable_and_values(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise UsageError(f"--only {text}: give NAME=VALUE, or comma-separated values")
    return name.strip(), [value.strip() for value in values.split(",")]


def _value(tunable: Tunable, text: str) -> Value:
    for value in tunable.values:
        if str(value) == text:
            return value
    raise UsageError(f"--only {tunable.name}={text}: choose from {', '.join(map(str, tunable.values))}")


def with_neighbours(families: Families) -> Families:
    """Adds, to each family's configs, those one step of one tunable away that the search space excludes.

    A landscape with them holds configs that fail. A neighbour that differs only in a tunable without effect is the same
    kernel and is left out.

    Raises:
        UsageError: There are too many valid configs to enumerate.
    """
    countable(FamilySpaces(tuple(family.valid for family in families.taken)))
    return replace(families, taken=tuple(replace(family, valid=_widened(family.valid)) for family in families.taken))


def _widened(space: ValidSpace) -> ValidSpace:
    rows = dict.fromkeys(tuple(row) for row in space.all_rows().tolist())
    names = [tunable.name for tunable in space.tunables]
    for row in list(rows):
        values = {t.name: t.values[index] for t, index in zip(space.tunables, row, strict=True)}
        for tunable in space.tunables:
            for value in tunable.neighbours(values[tunable.name]):
                near = space.conditions.normalised(values | {tunable.name: value})
                rows.setdefault(tuple(t.encode(near[name]) for t, name in zip(space.tunables, names, strict=True)))
    return with_rows(space, np.array(list(rows), np.uint8))
