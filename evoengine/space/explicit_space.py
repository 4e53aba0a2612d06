"""Valid configs given as a list, such as those that a landscape has recorded."""

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
from evoengine.space.diagram.decision_diagram import Diagram, IndexRows
from evoengine.space.diagram.row_set import RowSet
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import Definition
from evoengine.space.rulebook import RuleBook
from evoengine.space.valid_space import ValidSpace


class ExplicitSpace(ValidSpace):
    """A space whose valid configs are exactly some given rows.

    Everything that a :class:`ValidSpace` promises holds, and all of it exactly. Only the way to the nearest config is
    another: rows without rules share little, so their diagram is large, and looking at every row is faster.
    """

    def summary(self) -> list[str]:
        """The size; what a constraint removes is not known of a list."""
        return [f"{self.family}: {self.count.of('configs')} of {len(self.tunables)} tunables, given as a list"]

    @cached_property
    def _rows(self) -> IndexRows:
        """``[configs, tunables]``, by place."""
        return self.diagram.rows(np.arange(self.diagram.count))

    @cached_property
    def _place_of(self) -> Mapping[bytes, int]:
        """Place of a row, by its bytes."""
        return {row.tobytes(): place for place, row in enumerate(self._rows)}

    def _nearest(self, values: Mapping[str, Value], rng: np.random.Generator | None, seen: RowSet) -> Config | None:
        wanted = self.conditions.settled({t.name: values[t.name] for t in self.tunables if t.name in values})
        free = self._free(seen)
        if not free.any():
            return None
        steps = np.zeros(len(self._rows), np.int64)
        for axis in range(len(self.tunables)):
            steps += self._steps(axis, wanted)[self._rows[:, axis]]
        steps[~free] = np.iinfo(np.int64).max
        ties = np.flatnonzero(steps == steps.min())
        place = ties[0] if rng is None else ties[int(rng.integers(len(ties)))]
        return self.config_of(self._rows[place])

    def _free(self, seen: RowSet) -> npt.NDArray[np.bool_]:
        """Which rows are not in a set."""
        free = np.ones(len(self._rows), np.bool_)
        places = (self._place_of.get(row.tobytes()) for row in seen.rows)
        free[[place for place in places if place is not None]] = False
        return free


def every_nth(space: ValidSpace, first: int, step: int) -> ExplicitSpace | None:
    """Every so many-th valid config of a space, in its order; None where there is none.

    Args:
        space: small enough that all of its configs can be listed.
        first: place of the first one.
        step: from one to the next.
    """
    rows = [space.row_of(config) for config in itertools.islice(space, first, None, step)]
    if not rows:
        return None
    definition = replace(space.book.definition, tunables=space.tunables)
    return listed_space(definition, space.book.constants, np.array(rows, np.uint8))


def listed_space(definition: Definition, constants: Mapping[str, Value], rows: IndexRows) -> ExplicitSpace:
    """The space of given rows.

    Args:
        definition: the tunables, and the derived values that their conditions name.
        constants: what the names of the problem and the target stand for in conditions.
        rows: ``[configs, tunables]`` value indices, all distinct, at least one.
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
