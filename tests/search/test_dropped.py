"""Candidates that racing prunes: recorded, reported to the strategy, counted, and never ranked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, GpuReading, Status, Telemetry
from evoengine.search.candidate.jobs import MeasureEnergy
from evoengine.search.candidate.results import Candidate, Examination
from evoengine.search.champion.energy import meter_elites
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.registry import STRATEGIES, make_strategy
from evoengine.search.warmstart.resume import outcomes
from evoengine.space.valid_space import ValidSpace
from evoengine.statistics import median_interval
from tests.search.landscape import build_space, true_us
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, open_search, unroll_is_dead

TINY = {"TILE_M": (16, 64), "TILE_N": (32, 64), "WARPS": (1, 4), "STAGES": (2,), "PAD": (0, 8), "CTAS": (1,)}
SEEN = Telemetry(GpuReading(1980, 3201, 40, 300.0), GpuReading(1965, 3201, 44, 310.0), discarded=10)


@dataclass
class Racing(SyntheticExaminer):
    """Prunes candidates more than 10 % slower than the best, after eight samples."""

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        whole = super().examine(candidate, champion_us)
        timing = whole.timing
        if timing is None:
            return whole
        if champion_us is None or timing.median_us <= 1.1 * champion_us:
            return replace(whole, timing=replace(timing, samples_us=(timing.median_us,) * 30, telemetry=SEEN))
        few = (timing.median_us,) * 8
        ends = median_interval(few)
        timing = replace(timing, low_us=ends.low, high_us=ends.high, samples_us=few, telemetry=SEEN)
        return replace(whole, status=Status.PRUNED, reason="at least 10% slower", timing=timing)


@dataclass
class Metered(Racing):
    """Reports 200 W for every kernel."""

    metered: list[str] = field(default_factory=list)

    def measure_energy(self, candidate: Candidate) -> float | None:
        self.metered.append(candidate.config.key)
        return 200.0 * true_us(candidate.config)


def test_pruned_candidates_count_and_are_not_ranked(board: Leaderboard, space: ValidSpace) -> None:
    settings = SearchSettings(budget=60, strategy="random")
    search, study = open_search(board, space, settings, SyntheticCompiler(), Racing())
    result = search.run()
    counts = board.counts(study)
    assert counts[Status.PRUNED] + counts[Status.OK] == result.progress.evaluated == 60
    assert counts[Status.PRUNED] > 10
    assert len(board.rows()) == counts[Status.OK]
    stored = [entry.evaluation for entry in board.evaluations(study)]
    best = min(stored, key=lambda evaluation: true_us(evaluation.config))
    assert best.status is Status.OK
    assert result.elites[0].median_us == true_us(best.config)
    assert {row.status for row in result.elites} == {Status.OK}
    assert result.champion is not None
    tally = result.measurements
    assert (tally.measured, tally.pruned) == (60, counts[Status.PRUNED])
    assert tally.pruned_samples == 8 * counts[Status.PRUNED]
    assert tally.samples == tally.pruned_samples + 30 * counts[Status.OK]
    assert (tally.discarded, tally.throttled, tally.sm_mhz, tally.hottest_c) == (600, 0, (1965, 1980), 44)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_learns_the_same_as_from_whole_measurements(space: ValidSpace, name: str) -> None:
    """The same seed proposes the same configs, whether slow ones are pruned or measured in full."""
    proposed: list[list[Config]] = []
    for slow in (Status.OK, Status.PRUNED):
        strategy = make_strategy(name, space, seed=3)
        proposed.append([])
        for _ in range(25):
            proposal = strategy.ask()
            assert proposal is not None
            proposed[-1].append(proposal.config)
            us = true_us(proposal.config)
            strategy.tell(proposal, us, slow if us > 7.0 else Status.OK)
    assert proposed[0] == proposed[1]


def test_a_resumed_search_knows_the_estimates(board: Leaderboard, space: ValidSpace) -> None:
    search, study = open_search(board, space, SearchSettings(budget=40), SyntheticCompiler(), Racing())
    search.run()
    observed = {outcome.config: outcome.value_us for outcome in outcomes(board.evaluations(study))}
    assert len(observed) == 40
    assert all(value_us == true_us(config) for config, value_us in observed.items())


def test_a_duplicate_of_a_pruned_kernel_has_its_estimate(board: Leaderboard, tmp_path: Path) -> None:
    space = build_space(tmp_path, TINY)  # small enough to exhaust
    compiler = SyntheticCompiler(code_of=unroll_is_dead)
    examiner = Racing(value_of=lambda config: true_us(replace(config, values=tuple(sorted(
        (config.as_dict() | {"UNROLL": False}).items()
    )))))  # fmt: skip
    search, study = open_search(board, space, SearchSettings(budget=1000), compiler, examiner)
    search.run()
    stored = {entry.evaluation.config.key: entry.evaluation for entry in board.evaluations(study)}
    twins = [one for one in stored.values() if one.duplicate_of and stored[one.duplicate_of].status is Status.PRUNED]
    assert twins
    observed = {outcome.config: outcome.value_us for outcome in outcomes(board.evaluations(study))}
    assert all(observed[twin.config] == stored[twin.duplicate_of].value_us for twin in twins)


def test_the_elites_energy_is_measured_at_the_end(board: Leaderboard, space: ValidSpace) -> None:
    compiler, examiner = SyntheticCompiler(), Metered()
    search, study = open_search(board, space, SearchSettings(budget=30, elite_k=4), compiler, examiner)
    result = meter_elites(board, search.run(), compiler, examiner)
    assert [row.energy_uj for row in result.elites] == [200.0 * (row.median_us or 0) for row in result.elites]
    assert result.best == result.champion == result.elites[0], "one row has one energy wherever it is shown"
    assert len(examiner.metered) == 4
    assert result.stage_seconds["energy"] > 0
    assert [row.energy_uj for row in board.elites(study, 5)] == [*(row.energy_uj for row in result.elites), None]
    again = meter_elites(board, replace(result, elites=tuple(board.elites(study, 5))), compiler, examiner)
    assert len(examiner.metered) == 5, "known energies are not measured again"
    assert all(row.energy_uj for row in again.elites)


def test_no_energy_where_nothing_measures_it(board: Leaderboard, space: ValidSpace) -> None:
    compiler, examiner = SyntheticCompiler(), SyntheticExaminer()
    assert not examiner.supports(MeasureEnergy)
    search, _ = open_search(board, space, SearchSettings(budget=5), compiler, examiner)
    result = search.run()
    assert meter_elites(board, result, compiler, examiner) is result


def test_a_kernel_that_cannot_be_made_again_is_left_out(board: Leaderboard, space: ValidSpace) -> None:
    search, _ = open_search(board, space, SearchSettings(budget=5), SyntheticCompiler(), Metered())
    result = search.run()
    changed = SyntheticCompiler(code_of=lambda config: f"new-{config.key}")
    examiner = Metered()
    assert all(row.energy_uj is None for row in meter_elites(board, result, changed, examiner).elites)
    assert examiner.metered == []
