"""Loop of an evolution: a parent, a proposal, a check, a search, and the archive.

The attempts in the leaderboard are the only state, so that a killed evolution goes on where it ended: proposal number N
draws from a generator that is seeded by the seed and N.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from evoengine.engine.options.evolution import MODEL_OPERATORS
from evoengine.errors import CandidateError, PatchError, SearchSpaceError, UsageError
from evoengine.evolution.archive import TUNED, Archive
from evoengine.evolution.context import ContextBuilder
from evoengine.evolution.credit import BASE, OperatorStats, next_operators, statistics
from evoengine.evolution.records import Context, Proposal, Proposer
from evoengine.evolution.variant_searches import Tuned, VariantSearches
from evoengine.leaderboard.records import Row, Scope
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variants import Attempt
from evoengine.model import Patch, Value, Variant, base_family
from evoengine.system.stop_signals import on_stop_signal

_MOST_REPEATS: Final = 32
"""Maximum number of consecutive calls of an operator whose proposals were all judged before."""


class EvolutionStop(enum.Enum):
    """Why an evolution ended."""

    BUDGET_REACHED = "budget reached"
    NO_PROPOSALS = "no operator has a proposal left"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class EvolutionSettings:
    """Settings of one evolution."""

    budget: int
    """Proposals in all runs."""
    candidates: int
    """Candidates of the ordinary search for each correct variant, and for the unchanged family."""
    islands: int = 2
    seed: int = 0
    deadline_s: float | None = None
    """Seconds of this run; None for no limit."""


@dataclass(frozen=True)
class EvolutionResult:
    """Result of an evolution."""

    stop: EvolutionStop
    attempts: tuple[Attempt, ...]
    """Attempts of all runs, oldest first; the first one searched the unchanged family."""
    new: int
    """Attempts of this run."""
    operators: tuple[OperatorStats, ...]
    base_us: float | None
    """Best time of the unchanged family."""
    best: Attempt | None
    """Attempt with the fastest kernel."""
    champion: Row | None
    cells: int
    """Occupied archive cells."""
    elapsed_s: float


@dataclass(frozen=True)
class _Outcome:
    """Attempt that a proposal became, and how to go on."""

    attempt: Attempt
    repairable: bool = False
    interrupted: bool = False


class Evolution:
    """One evolution of one family; :meth:`run` it once.

    Args:
        settings: Budget and other settings.
        searches: Workers and spaces.
        board: Leaderboard that records everything.
        proposers: Operators.
        notify: Receives each attempt when it is stored.
        wants_lines: Whether a proposer reads counters by source line.
    """

    def __init__(
        self,
        settings: EvolutionSettings,
        searches: VariantSearches,
        board: Leaderboard,
        proposers: Sequence[Proposer],
        notify: Callable[[Attempt], object] = lambda _: None,
        *,
        wants_lines: bool = False,
    ) -> None:
        self._settings = settings
        self._searches = searches
        self._board = board
        self._proposers = {one.name: one for one in proposers}
        self._notify = notify
        self._family = searches.plan.families.taken[0].name
        self._scope: Scope = searches.plan.study_key.scope
        self._contexts = ContextBuilder(searches, board, wants_lines=wants_lines)
        self._stopped = False
        self._start_s = time.monotonic()

    def run(self) -> EvolutionResult:
        """Evolves until the budget is reached, time is up, the operators have nothing left, or a stop is requested.

        Raises:
            EvoEngineError: The device, a worker or the leaderboard cannot be used.
        """
        before = len(self._attempts())
        with on_stop_signal(self._request_stop, once=True):
            stop = self._evolve()
        attempts = self._attempts()
        timed = [one for one in attempts if one.stage == TUNED and one.best_us is not None]
        return EvolutionResult(
            stop=stop,
            attempts=tuple(attempts),
            new=len(attempts) - before,
            operators=statistics(attempts),
            base_us=next((one.best_us for one in attempts if one.operator == BASE), None),
            best=min(timed, key=lambda one: one.best_us or 0.0, default=None),
            champion=self._board.champion(self._scope),
            cells=len({one.cell for one in self._archive(attempts).members}),
            elapsed_s=time.monotonic() - self._start_s,
        )

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _evolve(self) -> EvolutionStop:
        empty = 0
        while True:
            attempts = self._attempts()
            stop = self._stop_reason(attempts)
            if stop is not None:
                return stop
            count = 0
            if empty > len(self._archive(attempts).ranked):
                return EvolutionStop.NO_PROPOSALS
            outcomes = self._round(attempts, empty) if attempts else iter([self._search_base()])
            for outcome in outcomes:
                if outcome.interrupted:
                    return EvolutionStop.TIME_LIMIT if self._left_s() == 0 else EvolutionStop.INTERRUPTED
                self._board.variants.add_attempt(self._scope, outcome.attempt)
                self._notify(outcome.attempt)
                count += 1
            empty = 0 if count else empty + 1

    def _stop_reason(self, attempts: Sequence[Attempt]) -> EvolutionStop | None:
        if self._stopped:
            return EvolutionStop.INTERRUPTED
        if self._left_s() == 0:
            return EvolutionStop.TIME_LIMIT
        return EvolutionStop.BUDGET_REACHED if _proposals(attempts) >= self._settings.budget else None

    def _round(self, attempts: Sequence[Attempt], empty: int) -> Iterator[_Outcome]:
        """Makes and judges the proposals of one operator; yields none if no operator has one for the drawn parent.

        Args:
            attempts: Attempts so far.
            empty: Number of consecutive rounds so far in which no operator had a proposal. From the first one on, the
                parents are the archive's members in order of rank, so that the evolution ends only after each was
                tried.
        """
        number = _proposals(attempts)
        rng = random.Random(f"{self._settings.seed}/{number}/{empty}")  # noqa: S311 - repeatable, not secret
        archive = self._archive(attempts)
        if not archive.members:
            raise UsageError(
                f"the unchanged family {self._family} has no correct kernel for {self._scope.problem}: give another "
                "--family, or more --candidates"
            )
        island = number % self._settings.islands
        parent = archive.ranked[empty - 1] if empty else archive.parent(island, rng)
        context = self._contexts.build(parent, archive, attempts, rng)
        for name in next_operators(self._proposers, attempts):
            proposals = self._new_proposals(self._proposers[name], context, archive, rng)
            for proposal in proposals[: self._settings.budget - number]:
                if self._stopped or self._left_s() == 0:
                    return
                yield self._judge_repaired(context, archive, island, proposal)
            if proposals:
                return

    def _new_proposals(
        self, proposer: Proposer, context: Context, archive: Archive, rng: random.Random
    ) -> tuple[Proposal, ...]:
        """Returns proposals that were not judged before; none if the operator has none."""
        if proposer.name in MODEL_OPERATORS:  # drawing another one instead would cost another request to the model
            return proposer.propose(context, rng)
        for _ in range(_MOST_REPEATS):
            proposals = proposer.propose(context, rng)
            new = tuple(one for one in proposals if self._name_of(context.parent.family, one) not in archive.tried)
            if new or not proposals:
                return new
        return ()

    def _name_of(self, parent: str, proposal: Proposal) -> str | None:
        """Returns the name of a proposal's variant; None for configs, and for the null control's."""
        if proposal.patch is None or not proposal.patch.edits:
            return None
        return self._variant(parent, proposal.patch).name

    def _judge_repaired(self, context: Context, archive: Archive, island: int, proposal: Proposal) -> _Outcome:
        """Judges a proposal, and a corrected one if the first is rejected for a reason that can be repaired."""
        start_s = time.monotonic()
        outcome = self._judge(context, archive, proposal)
        if outcome.repairable and not outcome.interrupted:
            message = f"{outcome.attempt.stage}: {outcome.attempt.reason}"
            repaired = self._proposers[proposal.operator].repair(context, proposal, message)
            if repaired is not None:
                outcome = self._judge(context, archive, repaired)
        seconds = time.monotonic() - start_s
        return replace(outcome, attempt=replace(outcome.attempt, island=island, seconds=seconds))

    def _search_base(self) -> _Outcome:
        """Searches the unchanged family with the budget that each variant has."""
        start_s = time.monotonic()
        tuned = self._searches.tune(self._family, self._settings.candidates, (), self._left_s())
        attempt = Attempt(BASE, self._family, 0, TUNED, "the unchanged family", variant=self._family)
        hashes = replace(attempt, text_hash=self._searches.plan.families.taken[0].template_hash)
        done = self._finished(hashes, tuned)
        return replace(done, attempt=replace(done.attempt, seconds=time.monotonic() - start_s))

    def _judge(self, context: Context, archive: Archive, proposal: Proposal) -> _Outcome:
        parent = context.parent
        attempt = Attempt(
            proposal.operator,
            parent.family,
            0,
            "apply",
            summary=proposal.patch.summary if proposal.patch is not None else f"{len(proposal.configs)} configs",
            parent_us=parent.time_us,
            origin=proposal.origin,
        )
        if proposal.failure:
            return _Outcome(replace(attempt, stage="reply", summary="", reason=proposal.failure))
        if proposal.patch is None:
            return self._judge_configs(context, proposal, attempt)
        try:
            variant = self._variant(parent.family, proposal.patch)
            attempt = replace(attempt, variant=variant.name)
            if proposal.patch.edits and variant.name in archive.tried:
                return _Outcome(replace(attempt, stage="novelty", reason="was proposed before"))
            text_hash = self._searches.add(variant)
        except (PatchError, UsageError, CandidateError) as error:
            return _Outcome(replace(attempt, reason=str(error)), repairable=True)
        attempt = replace(attempt, text_hash=text_hash)
        twin = archive.same_text(text_hash)
        if twin and not variant.patch.tunables:
            return _Outcome(replace(attempt, stage="novelty", reason=f"has the text of {twin}"))
        self._board.variants.add(variant, proposal.operator, proposal.parents, proposal.origin)
        try:
            return self._judge_variant(context, archive, proposal, attempt)
        except SearchSpaceError as error:  # a constraint of the patch that cannot be evaluated, or not in time
            return _Outcome(replace(attempt, stage="space", reason=str(error)), repairable=True)

    def _judge_variant(self, context: Context, archive: Archive, proposal: Proposal, attempt: Attempt) -> _Outcome:
        """Checks the parent's best config in the variant's source, then searches the variant."""
        searches, name = self._searches, attempt.variant
        best = dict(context.best[0].config) if context.best else {}
        starts = searches.starts(name, best)
        if not starts:
            reason = "the parent's best config is not valid with the added tunables' defaults"
            return _Outcome(replace(attempt, stage="space", reason=reason), repairable=True)
        wanted = (*proposal.configs, *_other_values(proposal.patch))
        tried = tuple(start for values in wanted for start in searches.starts(name, {**best, **values}))
        checked = searches.check(name, starts[0], self._left_s())
        attempt = replace(attempt, code_hash=checked.code_hash, candidates=checked.candidates)
        if checked.unfinished:
            return _Outcome(attempt, interrupted=True)
        if checked.failure:
            return _Outcome(replace(attempt, stage=checked.failure, reason=checked.reason), repairable=True)
        twin = archive.same_code(checked.code_hash)
        if twin and not searches.variants[name].patch.tunables:
            others = searches.differing_starts(name, twin)  # a patch may act in configs that are not the best ones
            if not others:
                return _Outcome(replace(attempt, stage="novelty", reason=f"compiles to the machine code of {twin}"))
            tried = (*tried, *others)
        tuned = searches.tune(name, self._settings.candidates, (*starts, *tried), self._left_s())
        return self._finished(attempt, replace(tuned, candidates=tuned.candidates + checked.candidates))

    def _judge_configs(self, context: Context, proposal: Proposal, attempt: Attempt) -> _Outcome:
        """Evaluates configs of the parent, as a continuation of its study."""
        searches, name = self._searches, context.parent.family
        best: Mapping[str, Value] = context.best[0].config if context.best else {}
        found = [start for values in proposal.configs for start in searches.starts(name, {**best, **values})]
        configs = tuple(dict.fromkeys(found))
        if not configs:
            return _Outcome(replace(attempt, stage="space", reason="no config is valid"), repairable=True)
        tuned = searches.tune_more(name, configs, self._left_s())
        named = replace(attempt, variant=name, text_hash=self._text_hash(name))
        return self._finished(named, tuned)

    def _finished(self, attempt: Attempt, tuned: Tuned) -> _Outcome:
        """Completes the attempt of a searched variant with its best row and counters."""
        if tuned.unfinished:
            return _Outcome(attempt, interrupted=True)
        if tuned.best is None:
            reason = tuned.reason or "no candidate is correct"
            return _Outcome(replace(attempt, stage="gate", reason=reason, candidates=tuned.candidates))
        counts = self._contexts.counts(tuned.best)
        done = replace(
            attempt,
            stage=TUNED,
            best_us=tuned.best.median_us,
            row_id=tuned.best.id,
            features=None if counts is None else counts.features,
            code_hash=attempt.code_hash or tuned.best.code_hash,
            candidates=tuned.candidates,
        )
        return _Outcome(done)

    # -- names and hashes ---------------------------------------------------------------------------------------------

    def _variant(self, parent: str, patch: Patch) -> Variant:
        known = self._searches.variants.get(parent)
        return Variant(self._family, patch if known is None else known.patch.then(patch))

    def _text_hash(self, name: str) -> str:
        return self._searches.library.load(name).template_hash

    def _archive(self, attempts: Sequence[Attempt]) -> Archive:
        return Archive.of(attempts, self._family, self._settings.islands)

    def _attempts(self) -> list[Attempt]:
        """Returns the attempts at this family in this ranking."""
        return [one for one in self._board.variants.attempts(self._scope) if base_family(one.parent) == self._family]

    def _left_s(self) -> float | None:
        """Returns the seconds that are left, at least 0; None without a limit."""
        if self._settings.deadline_s is None:
            return None
        return max(0.0, self._settings.deadline_s - (time.monotonic() - self._start_s))

    def _request_stop(self) -> None:
        self._stopped = True


def _other_values(patch: Patch | None) -> Iterator[Mapping[str, Value]]:
    """Yields each value of the tunables that a patch adds, except for the defaults: they are searched first."""
    for tunable in patch.tunables if patch is not None else ():
        yield from ({tunable.name: value} for value in tunable.values if value != tunable.default)


def _proposals(attempts: Sequence[Attempt]) -> int:
    """Counts the attempts that are proposals."""
    return sum(one.operator != BASE for one in attempts)
