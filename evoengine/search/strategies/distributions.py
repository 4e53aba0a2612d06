"""Mapping between configs and the parameters of Optuna's trials."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)

from evoengine.model import Config, Value
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.tunables import Ordinal, Tunable

FAMILY: Final = "family"
"""Name of the parameter that holds the family, where a study has several."""


class Parameters:
    """Maps configs to the parameters of Optuna's trials, and back.

    With one family, the parameters are its tunables. With several, each trial has the parameter ``family`` and the
    tunables of that family alone, named like ``mma.BLOCK_N``: a conditional search space in Optuna's terms.

    Args:
        spaces: Valid configs, by family.
    """

    def __init__(self, spaces: FamilySpaces) -> None:
        self._spaces = spaces
        self._several = len(spaces.members) > 1

    @cached_property
    def families(self) -> dict[str, BaseDistribution]:
        """The distribution of the parameter ``family``; empty with one family."""
        return {FAMILY: CategoricalDistribution(self._spaces.families)} if self._several else {}

    @cached_property
    def tunables(self) -> Mapping[str, dict[str, BaseDistribution]]:
        """Distributions of each family's tunables, in the space's order."""
        return {
            member.family: {
                self._name(member.family, tunable.name): _distribution(tunable) for tunable in member.tunables
            }
            for member in self._spaces.members
        }

    def of(self, family: str) -> dict[str, BaseDistribution]:
        """The distributions of a trial of this family."""
        return {**self.families, **self.tunables[family]}

    def params(self, config: Config) -> dict[str, Any]:
        """The parameters of a config's trial."""
        named = {self._name(config.family, name): value for name, value in config.values}
        return {FAMILY: config.family, **named} if self._several else named

    def config(self, params: Mapping[str, Any]) -> Config:
        """The config of a trial."""
        family = self.family(params)
        return Config.of(family, self.values(family, params))

    def family(self, params: Mapping[str, Any]) -> str:
        """The family of a trial."""
        return str(params[FAMILY]) if self._several else self._spaces.families[0]

    def values(self, family: str, params: Mapping[str, Any]) -> dict[str, Value]:
        """Values of a family's tunables in the parameters of a trial; those that are missing are left out."""
        prefix = self._name(family, "")
        return {name.removeprefix(prefix): params[name] for name in self.tunables[family] if name in params}

    def _name(self, family: str, tunable: str) -> str:
        return f"{family}.{tunable}" if self._several else tunable


def _distribution(tunable: Tunable) -> BaseDistribution:
    """An integer range where the values are evenly spaced, so that their order is used; else a list of choices."""
    values = [value for value in tunable.values if isinstance(value, int) and not isinstance(value, bool)]
    if isinstance(tunable, Ordinal) and len(values) == len(tunable.values):
        steps = {after - before for before, after in pairwise(values)} or {1}
        if len(steps) == 1 and min(steps) > 0:
            return IntDistribution(values[0], values[-1], step=min(steps))
    return CategoricalDistribution(tunable.values)
