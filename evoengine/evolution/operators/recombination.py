"""Crossover of two variants' patches, and swap of one region with that of another variant."""

from __future__ import annotations

import random
from collections.abc import Callable

from evoengine.evolution.operators.region_edits import edit_of
from evoengine.evolution.records import Context, Proposal, VariantSummary
from evoengine.model import Patch, Region


class Crossover:
    """Applies the edits of a mate that the parent lacks to the parent."""

    name = "crossover"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one proposal; none without a mate whose edits make a new combination."""
        own = context.parent.patch or Patch(())
        known = {frozenset(one.patch.edits) for one in context.mates if one.patch is not None}
        mates = [
            mate
            for mate in context.mates
            if (missing := _missing(mate, own).edits) and frozenset((*own.edits, *missing)) not in known
        ]
        if not mates:
            return ()
        mate = rng.choice(mates)
        return (Proposal(self.name, (context.parent.family, mate.family), _missing(mate, own)),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: patches that contradict each other have no common child."""
        return None


def _missing(mate: VariantSummary, own: Patch) -> Patch:
    """Returns the edits and tunables of a mate that a patch lacks."""
    patch = mate.patch or Patch(())
    names = {tunable.name for tunable in own.tunables}
    return Patch(
        tuple(edit for edit in patch.edits if edit not in own.edits),
        tuple(tunable for tunable in patch.tunables if tunable.name not in names),
        f"crossover with {mate.family}: {mate.summary}",
    )


class RegionSwap:
    """Replaces one region of the parent by that of a mate.

    Args:
        regions_of: Returns the regions of a family or variant by its name.
    """

    name = "swap"

    def __init__(self, regions_of: Callable[[str], tuple[Region, ...]]) -> None:
        self._regions_of = regions_of

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one proposal; none if no mate has a region with another text.

        A region that reads a tunable of the mate brings that tunable with it.
        """
        own = {(region.file, region.name): region for region in context.regions}
        found = [
            (mate, own[region.file, region.name], region)
            for mate in context.mates
            for region in self._regions_of(mate.family)
            if (region.file, region.name) in own and own[region.file, region.name].text != region.text
        ]
        if not found:
            return ()
        mate, region, other = rng.choice(found)
        edit = edit_of(region, other.text, context.regions)
        if edit is None:
            return ()
        names = context.space.by_name
        tunables = tuple(
            one for one in (mate.patch or Patch(())).tunables if one.name not in names and one.name in other.text
        )
        summary = f"region {region.name} of {region.file} from {mate.family}"
        return (Proposal(self.name, (context.parent.family, mate.family), Patch((edit,), tunables, summary)),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: the mate's text is what it is."""
        return None


class UnchangedParent:
    """Null control: returns the parent, of which nothing may be accepted."""

    name = "parent"

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns an empty patch."""
        return (Proposal(self.name, (context.parent.family,), Patch((), summary="the parent, unchanged")),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: there is nothing to repair."""
        return None
