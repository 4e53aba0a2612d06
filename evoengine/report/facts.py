"""Data of one study for the page, read from the leaderboard."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from evoengine.errors import StoreError
from evoengine.leaderboard.lineage import changes
from evoengine.leaderboard.records import Challenge, Record, Row, RowFilter, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variant_tree import TreeNode, variant_trees
from evoengine.leaderboard.variants import StoredVariant
from evoengine.model import HardwareProfile, Problem, Status, base_family
from evoengine.target import TARGETS, Target, target_for_gpu

ELITES: Final = 10
"""Number of elites on a page."""
MOST_SOURCE_CHARACTERS: Final = 1 << 25
"""Maximum length of all sources of a page; the largest of the packaged families has 200,000 characters."""
_NUMBER: Final = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\b", re.IGNORECASE)
_LONGEST_REASON: Final = 200


@dataclass(frozen=True)
class StudyFacts:
    """One study and the ranking of its scope."""

    study: Study
    rows: tuple[Row, ...]
    """Every evaluation of the study, oldest first."""
    elites: tuple[Row, ...]
    """Fastest rows of the study's scope, other studies included."""
    champion: Record | None
    challenges: tuple[Challenge, ...]
    """Champion history of the scope, oldest first."""
    challengers: dict[int, Row]
    """Rows of the champion history by id."""
    profiles: dict[int, HardwareProfile]
    """Hardware counters of the elites by row."""
    variants: tuple[TreeNode, ...] = ()
    """Trees of the variants of the study's families, with their times in the study's scope."""
    has_source: bool = True
    """Whether ``champion`` has its source; not if the page would be too large."""

    @property
    def problem(self) -> Problem:
        """Problem of the study; for a workload its first problem."""
        return self.study.key.problem

    @property
    def subject(self) -> str:
        """Key of the problem or workload."""
        return self.study.scope.problem

    @property
    def predicted(self) -> bool:
        """Whether times are predictions."""
        return self.study.scope.predicted

    @property
    def key(self) -> str:
        """Id of the study on the page, and its URL fragment."""
        return f"study-{self.study.id}"

    @property
    def title(self) -> str:
        """Problem or workload, and device."""
        return f"{self.subject} on {self.study.scope.device}"

    @property
    def unit(self) -> str:
        """Unit of every time on the page, marked where times are predicted."""
        return "µs (predicted)" if self.predicted else "µs"

    @cached_property
    def timed(self) -> tuple[Row, ...]:
        """Correct rows with a time, oldest first."""
        return tuple(row for row in self.rows if row.status is Status.OK and row.median_us is not None)

    @cached_property
    def dropped(self) -> tuple[Row, ...]:
        """Correct rows that were pruned while they were timed; their times rest on few samples."""
        return tuple(row for row in self.rows if row.status is Status.PRUNED and row.median_us is not None)

    @cached_property
    def target(self) -> Target | None:
        """Data sheet of the GPU; None if there is none."""
        name = self.study.scope.device
        known = {target.marketing_name: target for target in TARGETS.values()}
        return known.get(name) or target_for_gpu(name)


def gather_all(board: Leaderboard, studies: Iterable[Study]) -> list[StudyFacts]:
    """Reads the studies of a page, with the champions' sources up to :data:`MOST_SOURCE_CHARACTERS` in total.

    A leaderboard packs sources: a file of 5 MB may hold a thousand champions with 16 MiB of source each.
    """
    found, left, variants = [], MOST_SOURCE_CHARACTERS, board.variants.all()
    for study in studies:
        facts = _facts_of(board, study, variants)
        if facts.champion is not None:
            evaluation = facts.champion.evaluation
            if len(evaluation.source) > left:
                champion = replace(facts.champion, evaluation=replace(evaluation, source=""))
                facts = replace(facts, champion=champion, has_source=False)
            else:
                left -= len(evaluation.source)
        found.append(facts)
    return found


def gather(board: Leaderboard, study_id: int | None = None) -> StudyFacts:
    """Reads a study.

    Args:
        board: Leaderboard to read.
        study_id: Id of the study; None for the study with the newest row.

    Raises:
        StoreError: The leaderboard has no such study, or none at all.
    """
    study = newest_first(board)[0] if study_id is None else find_study(board, study_id)
    return _facts_of(board, study, board.variants.all())


def _facts_of(board: Leaderboard, study: Study, variants: Sequence[StoredVariant]) -> StudyFacts:
    rows = sorted(board.rows(RowFilter(study_id=study.id, statuses=())), key=lambda row: row.id)
    champion = board.champion(study.scope)
    challenges = tuple(board.challenges(study.scope))
    named = {one for challenge in challenges for one in (challenge.evaluation_id, challenge.champion_id) if one}
    scope = study.scope
    ranked = board.rows(RowFilter(problem=scope.problem, device=scope.device, method=scope.method))
    elites = tuple(board.elites(study, ELITES))
    return StudyFacts(
        study=study,
        rows=tuple(rows),
        elites=elites,
        champion=None if champion is None else next(board.records((champion.id,)), None),
        challenges=challenges,
        challengers={row.id: row for row in ranked if row.id in named},
        profiles=board.profiles([row.id for row in elites]),
        variants=_trees(board, study, variants),
    )


def _trees(board: Leaderboard, study: Study, variants: Sequence[StoredVariant]) -> tuple[TreeNode, ...]:
    families = {base_family(name) for name in study.key.family.split(",")}
    trees = variant_trees(variants, board.variants.attempts(study.scope))
    return tuple(tree for tree in trees if base_family(tree.name) in families)


def newest_first(board: Leaderboard) -> list[Study]:
    """Returns the studies, the one with the newest row first; those without rows come last.

    Raises:
        StoreError: The leaderboard has no study.
    """
    newest: dict[int, int] = {}
    for row in board.rows(RowFilter(statuses=())):
        newest[row.study_id] = max(row.id, newest.get(row.study_id, 0))
    return sorted(_studies(board), key=lambda study: (-newest.get(study.id, 0), -study.id))


def find_study(board: Leaderboard, study_id: int) -> Study:
    """Returns a study by its id.

    Raises:
        StoreError: The leaderboard has no such study.
    """
    studies = {study.id: study for study in _studies(board)}
    if study_id not in studies:
        known = ", ".join(map(str, studies))
        raise StoreError(f"{board.name}: no study {study_id}: the studies are {known}")
    return studies[study_id]


def _studies(board: Leaderboard) -> list[Study]:
    studies = board.studies()
    if not studies:
        raise StoreError(f"{board.name}: no study yet: run a search first")
    return studies


@dataclass(frozen=True)
class Rejection:
    """Candidates with the same status and reason."""

    status: Status
    reason: str
    """Their reason; numbers that differ between them are replaced by N."""
    count: int
    example_id: int


def rejections(rows: Iterable[Row]) -> list[Rejection]:
    """Groups the rows that are not OK by status and reason, most frequent first."""
    groups: dict[tuple[Status, str], list[Row]] = {}
    for row in rows:
        if row.status is not Status.OK:
            groups.setdefault((row.status, _pattern(row)), []).append(row)
    found = [
        Rejection(status, group[0].reason[:_LONGEST_REASON] if len(group) == 1 else pattern, len(group), group[0].id)
        for (status, pattern), group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.count, one.status.value, one.reason))


def _pattern(row: Row) -> str:
    """Returns the reason without its numbers; all duplicates have one reason."""
    if row.status is Status.DUPLICATE:
        return "same machine code as another config"
    return _NUMBER.sub("N", " ".join(row.reason.split()))[:_LONGEST_REASON] or "no reason given"


@dataclass(frozen=True)
class Reign:
    """Accepted challenge: a row that became champion."""

    row: Row
    before: Row | None
    challenge: Challenge
    changed: tuple[str, ...]
    """Differences of its config to the champion before: ``BLOCK_N 64 → 128``."""


def reigns(facts: StudyFacts) -> Iterator[Reign]:
    """Yields the champions of the scope, oldest first, with the changes of each."""
    for challenge in facts.challenges:
        row = facts.challengers.get(challenge.evaluation_id)
        if challenge.accepted and row is not None:
            before = facts.challengers.get(challenge.champion_id or 0)
            yield Reign(row, before, challenge, () if before is None else tuple(changes(before, row)))


def row_us(row: Row) -> float:
    """Returns the time of a timed row in microseconds."""
    assert row.median_us is not None, "the row has a time"
    return row.median_us


def status_counts(rows: Sequence[Row]) -> dict[Status, int]:
    """Counts evaluations by status, in the order of the enum."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in Status if counts[status]}
