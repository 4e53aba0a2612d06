"""Family tree of variants: a family, its variants by parent, and the result of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from evoengine.leaderboard.variants import Attempt, StoredVariant
from evoengine.model import base_family

_MOST_GENERATIONS: Final = 150
"""Maximum depth of a tree, so that recursive functions and JSON can handle it."""


@dataclass(frozen=True)
class TreeNode:
    """A family or variant with its children, oldest first."""

    name: str
    operator: str
    """Operator that made it; empty for a family."""
    summary: str
    time_us: float | None
    """Best time in the ranking; None if it was not searched or no candidate is correct."""
    row_id: int | None
    """Row of the best time."""
    failure: str
    """Stage that rejected it, with the reason; empty for one that was searched."""
    other_parents: tuple[str, ...]
    """Further parents of a crossover or a swap."""
    children: tuple[TreeNode, ...] = ()

    def walk(self, depth: int = 0) -> Iterator[tuple[int, TreeNode]]:
        """Yields the node and its descendants with their depths, parents before children."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def holds(self, name: str) -> bool:
        """Returns whether the node or a descendant has a name."""
        return any(node.name == name for _, node in self.walk())

    def around(self, name: str) -> TreeNode | None:
        """Returns the tree with only the ancestors and descendants of one node; None if the node is not in it."""
        if self.name == name:
            return self
        kept = tuple(found for child in self.children if (found := child.around(name)) is not None)
        if not kept:
            return None
        values = {key: value for key, value in vars(self).items() if key != "children"}
        return TreeNode(**values, children=kept)


def variant_trees(variants: Iterable[StoredVariant], attempts: Sequence[Attempt]) -> tuple[TreeNode, ...]:
    """Builds one tree for each family that has variants.

    A tree of more than 150 generations is divided: each variant of generation 150 that has children ends a branch, and
    is the root of a further tree.

    Args:
        variants: All variants, oldest first.
        attempts: Attempts of one ranking; the nodes show their times and failures.
    """
    stored = list(variants)
    children: dict[str, list[StoredVariant]] = {}
    names = {one.name for one in stored}
    for one in stored:
        parent = one.parents[0] if one.parents else one.variant.family
        children.setdefault(parent if parent in names else base_family(parent), []).append(one)
    families = dict.fromkeys(one.variant.family for one in stored)
    by_variant: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_variant.setdefault(attempt.variant, []).append(attempt)
    builder = _TreeBuilder(children, by_variant)
    trees = []
    for name in sorted(families):
        trees.append(builder.family(name))
        while builder.divided:
            trees.append(builder.node(builder.divided.pop(0), 0))
    return tuple(trees)


@dataclass(frozen=True)
class _TreeBuilder:
    """Builds trees from the variants by parent.

    A variant that is its own ancestor, in a damaged file, is below no family and therefore in no tree.
    """

    children: Mapping[str, Sequence[StoredVariant]]
    attempts: Mapping[str, Sequence[Attempt]]
    """Attempts by variant."""
    divided: list[StoredVariant] = field(default_factory=list)
    """Variants that ended a branch because of its depth, with children still to build."""

    def family(self, name: str) -> TreeNode:
        best, _ = self._results(name)
        below = tuple(self.node(one, 1) for one in self.children.get(name, ()))
        times = (None, None) if best is None else (best.best_us, best.row_id)
        return TreeNode(name, "", "the unchanged family", *times, "", (), below)

    def node(self, stored: StoredVariant, depth: int) -> TreeNode:
        """Builds the tree of a variant that is ``depth`` generations below the root of its tree."""
        best, last = self._results(stored.name)
        failure = f"{last.stage}: {last.reason}" if best is None and last is not None else ""
        below = self.children.get(stored.name, ())
        if depth == _MOST_GENERATIONS and below:
            self.divided.append(stored)
            below = ()
        return TreeNode(
            name=stored.name,
            operator=stored.operator,
            summary=stored.variant.patch.summary,
            time_us=None if best is None else best.best_us,
            row_id=None if best is None else best.row_id,
            failure=failure,
            other_parents=stored.parents[1:],
            children=tuple(self.node(one, depth + 1) for one in below),
        )

    def _results(self, name: str) -> tuple[Attempt | None, Attempt | None]:
        """Returns the attempt with a variant's best time, and the last one; None where there is none."""
        own = self.attempts.get(name, ())
        timed = [one for one in own if one.best_us is not None]
        return min(timed, key=lambda one: one.best_us or 0.0, default=None), own[-1] if own else None
