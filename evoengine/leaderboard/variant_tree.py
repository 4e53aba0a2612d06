"""Family tree of variants: a family, its variants by parent, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evoengine.leaderboard.variants import Attempt, StoredVariant
from evoengine.model import base_family


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

    Args:
        variants: All variants, oldest first.
        attempts: Attempts of one ranking, whose times and failures the tree states.
    """
    stored = list(variants)
    children: dict[str, list[StoredVariant]] = {}
    names = {one.name for one in stored}
    for one in stored:
        parent = one.parents[0] if one.parents else one.variant.family
        children.setdefault(parent if parent in names else base_family(parent), []).append(one)
    families = dict.fromkeys(one.variant.family for one in stored)
    return tuple(_family(name, children, attempts) for name in sorted(families))


def _family(name: str, children: dict[str, list[StoredVariant]], attempts: Sequence[Attempt]) -> TreeNode:
    best, _ = _results(name, attempts)
    below = tuple(_node(one, children, attempts, frozenset({name})) for one in children.get(name, ()))
    times = (None, None) if best is None else (best.best_us, best.row_id)
    return TreeNode(name, "", "the unchanged family", *times, "", (), below)


def _node(
    stored: StoredVariant,
    children: dict[str, list[StoredVariant]],
    attempts: Sequence[Attempt],
    above: frozenset[str],
) -> TreeNode:
    """Builds a node; a variant that is its own ancestor, in a damaged file, ends its branch."""
    best, last = _results(stored.name, attempts)
    failure = f"{last.stage}: {last.reason}" if best is None and last is not None else ""
    own = above | {stored.name}
    return TreeNode(
        name=stored.name,
        operator=stored.operator,
        summary=stored.variant.patch.summary,
        time_us=None if best is None else best.best_us,
        row_id=None if best is None else best.row_id,
        failure=failure,
        other_parents=stored.parents[1:],
        children=tuple(
            _node(one, children, attempts, own) for one in children.get(stored.name, ()) if one.name not in own
        ),
    )


def _results(name: str, attempts: Sequence[Attempt]) -> tuple[Attempt | None, Attempt | None]:
    """Returns the attempt with a variant's best time, and the last one; None where there is none."""
    own = [one for one in attempts if one.variant == name]
    timed = [one for one in own if one.best_us is not None]
    return min(timed, key=lambda one: one.best_us or 0.0, default=None), own[-1] if own else None
