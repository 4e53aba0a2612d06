"""Valid space given as a list of configs, such as those of a recorded landscape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.diagram.decision_diagram import Diagram
from evoengine.space.index_rows import IndexRows, RowSet
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import Definition
from evoengine.space.rulebook import RuleBook
from evoengine.space.valid_space import ValidSpace


class ExplicitSpace(ValidSpace):
    """Valid space that consists of given rows.

    It is always exact. The nearest config is found by comparing all rows: rows without common rules share few nodes, so
    a search in their large diagram would be slower.
    """

    def summary(self) -> list[str]:
        """Returns one line with the size; the effect of constraints is unknown for a list."""
        return [f"{self.family}: {self.count.of('configs')} of {len(self.tunables)} tunables, given as a list"]

    @cached_property
    def _rows(self) -> IndexRows:
        """``[configs, tunables]``, by position."""
        return self.diagram.rows(np.arange(self.diagram.count))

    @cached_property
    def _position_of(self) -> Mapping[bytes, int]:
        """Position of a row, by its bytes."""
        return {row.tobytes(): position for position, row in enumerate(self._rows)}

    def _nearest(self, values: Mapping[str, Value], rng: np.random.Generator | None, seen: RowSet) -> Config | None:
        wanted = self.conditions.normalised({t.name: values[t.name] for t in self.tunables if t.name in values})
        free = self._free(seen)
        if not free.any():
            return None
        steps = np.zeros(len(self._rows), np.int64)
        for axis in range(len(self.tunables)):
            steps += self._steps(axis, wanted)[self._rows[:, axis]]
        steps[~free] = np.iinfo(np.int64).max
        ties = np.flatnonzero(steps == steps.min())
        position = ties[0] if rng is None else ties[int(rng.integers(len(ties)))]
        return self.config_of(self._rows[position])

    def _free(self, seen: RowSet) -> npt.NDArray[np.bool_]:
        """Returns which rows are not in ``seen``."""
        free = np.ones(len(self._rows), np.bool_)
        positions = (self._position_of.get(row.tobytes()) for row in seen.rows)
        free[[position for position in positions if position is not None]] = False
        return free


def every_nth(space: ValidSpace, first: int, step: int) -> ExplicitSpace | None:
    """Returns every ``step``-th valid config of a space, in its order; None if there is none.

    Args:
        space: Space that is small enough to be enumerated.
        first: Position of the first config.
        step: Distance between positions.
    """
    rows = [space.row_of(config) for config in itertools.islice(space, first, None, step)]
    return with_rows(space, np.array(rows, np.uint8)) if rows else None


def with_rows(space: ValidSpace, rows: IndexRows) -> ExplicitSpace:
    """Builds the space of given rows, with the tunables and conditions of another space.

    Args:
        space: Space whose tunables the rows have; they need not be valid in it.
        rows: ``[configs, tunables]`` value indices, distinct, at least one row.
    """
    definition = replace(space.book.definition, tunables=space.tunables)
    return listed_space(definition, space.book.constants, rows)


def listed_space(definition: Definition, constants: Mapping[str, Value], rows: IndexRows) -> ExplicitSpace:
    """Builds the space of given rows.

    Args:
        definition: Tunables, and derived values that their conditions read.
        constants: Values of the problem's and the target's names, for conditions.
        rows: ``[configs, tunables]`` value indices, distinct, at least one row.
    """
    return ExplicitSpace(
        tunables=definition.tunables,
        count=Count(len(rows)),
        cartesian_size=math.prod(len(tunable.values) for tunable in definition.tunables),
        removed={},
        diagram=Diagram.of_rows(range(rows.shape[1]), rows),
        loose=(),
        book=RuleBook(definition, definition.tunables, constants),
        conditions=Conditions(definition, constants),
    )
