"""Context of a proposal: everything that an operator sees of the parent, from the leaderboard and the searches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from evoengine.evolution.archive import TUNED, Archive, Member, summaries
from evoengine.evolution.counters import KernelCounts, with_files
from evoengine.evolution.records import Context, FailedProposal, LineCounters, RowSummary
from evoengine.evolution.variant_searches import VariantSearches
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.records import Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variants import Attempt
from evoengine.model import Status

_BEST: Final = 5
_FAILED: Final = 5
_REJECTED: Final = 3
"""Rows and proposals that a context holds."""
_FAULTS: Final = tuple(one for one in Status if one not in (Status.OK, Status.DUPLICATE, Status.PRUNED))


class ContextBuilder:
    """Builds contexts, and keeps the counters of kernels that it has counted.

    Args:
        searches: Workers and spaces.
        board: Leaderboard of the rows.
        wants_lines: Whether to count by source line, which needs one more compilation of a kernel.
    """

    def __init__(self, searches: VariantSearches, board: Leaderboard, *, wants_lines: bool) -> None:
        self._searches = searches
        self._board = board
        self._wants_lines = wants_lines
        self._counted: dict[int, KernelCounts | None] = {}

    def counts(self, row: Row) -> KernelCounts | None:
        """Counts a row's kernel, once; None if it cannot be built or counted."""
        if row.id not in self._counted:
            kernel = self._searches.kernel(row.full_config)
            counted = None if kernel is None else self._searches.counts(kernel, lines=self._wants_lines)
            self._counted[row.id] = counted
        return self._counted[row.id]

    def build(self, parent: Member, archive: Archive, attempts: Sequence[Attempt], rng: random.Random) -> Context:
        """Returns the context of one parent.

        Args:
            parent: Parent.
            archive: Archive that it was drawn from.
            attempts: All attempts, oldest first.
            rng: Draws the diverse picks.
        """
        searches, plan = self._searches, self._searches.plan
        assert plan.target is not None, "nothing is replayed"
        best = self._rows(parent.name, (Status.OK,))[:_BEST]
        failed = sorted(self._rows(parent.name, _FAULTS), key=lambda row: -row.id)[:_FAILED]
        record = self._board.get(parent.row_id)
        kernel = searches.kernel(record.evaluation.config) if self._wants_lines else None
        (own,) = summaries((parent,), searches.variants)
        mates = [one for one in archive.ranked if one.name not in (parent.name, archive.family)]
        verdict = record.evaluation.verdict
        return Context(
            problem=plan.problem,
            target=plan.target,
            family=archive.family,
            parent=own,
            regions=searches.regions(parent.name),
            space=searches.space(parent.name),
            best=tuple(map(_summary, best)),
            failed=tuple(map(_summary, failed)),
            lines=self._lines(record.row) if self._wants_lines else (),
            resources=record.evaluation.resources,
            compiler_log=_log_of(kernel),
            verdict="" if verdict is None else _verdict_text(verdict.cases, verdict.worst_case, verdict.max_error),
            picks=summaries(archive.picks(parent.name, rng), searches.variants),
            rejected=_rejected(attempts),
            mates=summaries(mates, searches.variants),
        )

    def _rows(self, family: str, statuses: tuple[Status, ...]) -> list[Row]:
        scope = self._searches.plan.study_key.scope
        wanted = RowFilter(
            problem=scope.problem,
            device_kind=scope.device_kind,
            device=scope.device,
            arch=scope.arch,
            method=scope.method,
            predicted=scope.predicted,
            family=family,
            statuses=statuses,
        )
        return self._board.rows(wanted)

    def _lines(self, row: Row) -> tuple[LineCounters, ...]:
        counted = self.counts(row)
        return () if counted is None else with_files(counted.lines, self._searches.library.files(row.family))


def _summary(row: Row) -> RowSummary:
    return RowSummary(row.id, row.config, row.status.value, row.reason, row.median_us)


def _log_of(kernel: Kernel | None) -> str:
    return "" if kernel is None else kernel.binary.log


def _verdict_text(cases: int, worst_case: str, max_error: float) -> str:
    return f"passed {cases} cases; largest error {max_error:.3g} in case {worst_case}"


def _rejected(attempts: Sequence[Attempt]) -> tuple[FailedProposal, ...]:
    rejected = [one for one in attempts if one.stage != TUNED]
    return tuple(
        FailedProposal(one.operator, one.summary, one.stage, one.reason) for one in rejected[: -_REJECTED - 1 : -1]
    )
