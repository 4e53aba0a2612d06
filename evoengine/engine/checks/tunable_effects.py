"""Effects of tunables: outcomes of a check, derived from pairs of compiled configs."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field

from evoengine.model import Config, Problem, Value
from evoengine.space.moves.tunable_pairs import Pair
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Tunable
from evoengine.target import Target


class Effect(enum.Enum):
    """Effect of a change of a tunable in at least one config."""

    CODE = "machine code"
    LAUNCH = "launch only"
    """Grid, threads, shared memory, registers or workspace of the same machine code."""
    NOTHING = "NOTHING"
    FIXED = "NOT VARIED"
    """No valid config of the tried problems has a second value."""
    FAILED = "NOT COMPILED"
    """Every pair of values has one that does not compile."""
    SINGLE = "single value"
    """The file lists one value, so that there is nothing to compare."""


@dataclass(frozen=True)
class TunableEffect:
    """Outcome of the check of one tunable."""

    tunable: Tunable
    effect: Effect
    shown_by: Pair | None = None
    """Pair that shows the effect; None without one."""
    problem: Problem | None = None
    """Problem of that pair."""
    pairs: int = 0
    """Compiled pairs."""
    values: tuple[Value, ...] = ()
    """Values that were compiled."""
    alike: tuple[tuple[Value, ...], ...] = ()
    """Groups of values that are the same kernel in every config in which they were compared, at least in two."""
    reason: str = ""
    """First reason why a config did not compile."""

    @property
    def is_error(self) -> bool:
        """Whether the tunable should be fixed or deleted."""
        return self.effect in (Effect.NOTHING, Effect.FIXED, Effect.FAILED)


@dataclass(frozen=True)
class FamilyCheck:
    """Outcome of the check of one family."""

    space: SearchSpace
    target: Target
    problems: tuple[Problem, ...]
    """Problems that were compiled for: the requested one, then others with further features."""
    effects: tuple[TunableEffect, ...]
    """One per tunable, in file order."""

    @property
    def errors(self) -> tuple[str, ...]:
        """One line for each tunable that should be fixed or deleted."""
        return tuple(self._error(effect) for effect in self.effects if effect.is_error)

    def _error(self, found: TunableEffect) -> str:
        name, file = found.tunable.name, self.space.file or "the search space"
        head = f"family {self.space.family}: tunable {name}"
        problems = ", ".join(problem.key for problem in self.problems)
        if found.effect is Effect.FIXED:
            when = f" (when {found.tunable.when})" if found.tunable.when else ""
            return (
                f"{head}{when} has a single valid value for {problems} on {self.target.marketing_name}: give --problem "
                f"and --target for which it varies, or delete it from {file}"
            )
        if found.effect is Effect.FAILED:
            return f"{head}: of all {found.pairs} pairs of values one does not compile: {found.reason}"
        values = ", ".join(map(str, found.values))
        return (
            f"{head} does nothing: {found.pairs} pairs of its values {values} have the same machine code and launch "
            f"for {problems}: use Cfg::{name} in the kernel or its launch, or delete it from {file}"
        )


@dataclass(frozen=True)
class Built:
    """Identity of one compiled config."""

    code: str
    """Hash of the machine code; empty if it did not compile."""
    launch: tuple[object, ...] = ()
    """Launches, memory and resources for the problem and a larger one."""
    reason: str = ""
    """Why it did not compile."""


@dataclass
class Trace:
    """Pairs of one tunable that were compared so far."""

    tunable: Tunable
    best: tuple[Effect, Pair, Problem] | None = None
    pairs: int = 0
    failed: int = 0
    reason: str = ""
    values: set[Value] = field(default_factory=set)
    by_base: dict[tuple[Problem, Config], dict[Value, Built]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def is_decided(self) -> bool:
        return self.best is not None or len(self.tunable.values) < 2

    def add(self, pair: Pair, problem: Problem, base: Built, other: Built) -> None:
        """Takes the outcome of one pair."""
        self.pairs += 1
        self.values |= set(pair.values)
        if not (base.code and other.code):
            self.failed += 1
            self.reason = self.reason or base.reason or other.reason
            return
        if not pair.coupled:
            self.by_base[problem, pair.base] |= dict(zip(pair.values, (base, other), strict=True))
        effect = Effect.CODE if base.code != other.code else Effect.LAUNCH if base.launch != other.launch else None
        if effect is not None and (self.best is None or self.best[0] is Effect.LAUNCH is not effect):
            self.best = effect, pair, problem

    def result(self) -> TunableEffect:
        """Returns the outcome of all pairs."""
        values = tuple(value for value in self.tunable.values if value in self.values)
        if len(self.tunable.values) < 2:
            return TunableEffect(self.tunable, Effect.SINGLE)
        if self.best is not None:
            effect, pair, problem = self.best
            return TunableEffect(self.tunable, effect, pair, problem, self.pairs, values, self._alike())
        effect = Effect.FIXED if not self.pairs else Effect.FAILED if self.failed == self.pairs else Effect.NOTHING
        return TunableEffect(self.tunable, effect, pairs=self.pairs, values=values, reason=self.reason)

    def _alike(self) -> tuple[tuple[Value, ...], ...]:
        """Returns groups of values that are the same kernel wherever they were compared."""
        groups: list[list[Value]] = []
        for value in self.tunable.values:
            group = next((group for group in groups if all(self._same(value, one) for one in group)), None)
            if group is None:
                groups.append([value])
            else:
                group.append(value)
        return tuple(tuple(group) for group in groups if len(group) > 1)

    def _same(self, a: Value, b: Value) -> bool:
        both = [(built[a], built[b]) for built in self.by_base.values() if a in built and b in built]
        return len(both) > 1 and all((x.code, x.launch) == (y.code, y.launch) for x, y in both)
