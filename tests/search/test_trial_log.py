"""Optuna study in the leaderboard file: names, values, times and attributes, and writes under concurrency."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import optuna
import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.records import LeaseStatus, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation, Resources, Status, Timing
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.distributions import Parameters
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.trial_log import TrialWriter, open_optuna_study, optuna_studies
from evoengine.search.warmstart.resume import outcomes
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace
from tests.search.synthetic import study_key

pytestmark = pytest.mark.slow


class FormerStudy(Study):
    """A study as an earlier version named it."""

    @property
    def title(self) -> str:
        return "1x8x512x64-fp16 on Synthetic GPU (measured, graph-warm), synthetic, evolution, seed 0 #1"


def parameters(space: ValidSpace) -> Parameters:
    return Parameters(FamilySpaces.around(space))


def open_study(board: Leaderboard, space: ValidSpace, seed: int = 0) -> Study:
    return board.open_study(study_key(SearchSettings(budget=1, seed=seed), space))


def some(space: ValidSpace, count: int) -> list[Outcome]:
    return [Outcome(config, 5.0 + number, Status.OK) for number, config in enumerate(islice(space, count))]


def write(board: Leaderboard, study: Study, space: ValidSpace, trials: Sequence[Outcome]) -> None:
    writer = TrialWriter(board, study)
    writer.append(parameters(space), trials)
    writer.close()


def trials_of(board: Leaderboard, study: Study) -> list[optuna.trial.FrozenTrial]:
    return open_optuna_study(board, study).get_trials()


def test_studies_have_readable_names_and_say_what_was_optimised(board: Leaderboard, space: ValidSpace) -> None:
    studies = [open_study(board, space, seed) for seed in (0, 3)]
    for study in studies:
        write(board, study, space, some(space, 1))
    assert optuna.get_all_study_names(optuna_studies(board)) == [
        "1x8x512x64-fp16 synthetic-gpu-measured evolution seed 0 #1",
        "1x8x512x64-fp16 synthetic-gpu-measured evolution seed 3 #2",
    ]
    found = optuna.load_study(study_name=studies[1].title, storage=optuna_studies(board))
    assert found.user_attrs == {
        "evoengine:problem": "1x8x512x64-fp16",
        "evoengine:device": "Synthetic GPU",
        "evoengine:arch": "sm_89",
        "evoengine:families": "synthetic",
        "evoengine:times": "us, graph-warm",
    }
    assert found.metric_names == ["us"]


def test_trials_have_the_times_and_facts_of_their_rows(board: Leaderboard, space: ValidSpace) -> None:
    study = open_study(board, space)
    before = datetime.now(UTC).replace(tzinfo=None)
    timing = Timing(5.0, 5.0, 5.0, False, "graph-warm")
    done = Evaluation(space.config(1), Status.OK, timing=timing, resources=Resources(96, 8, 0, 0, 0, 128))
    failed = Evaluation(space.config(2), Status.COMPILE_FAILED, "no such instruction")
    for number, evaluation in enumerate((done, failed)):
        assert board.acquire_lease(study, evaluation.config, 10, number) is LeaseStatus.GRANTED
        board.record(study, evaluation, number)
    write(board, study, space, outcomes(board.evaluations(study)))
    first, second = trials_of(board, study)
    assert first.params == done.config.as_dict()
    assert (first.state, first.value) == (optuna.trial.TrialState.COMPLETE, 5.0)
    assert first.user_attrs == {
        "evoengine:status": "ok",
        "evoengine:row": 1,
        "evoengine:registers": 96,
        "evoengine:spill_bytes": 8,
    }
    assert (second.state, second.value) == (optuna.trial.TrialState.FAIL, None)
    assert second.user_attrs == {
        "evoengine:status": "compile_failed",
        "evoengine:row": 2,
        "evoengine:reason": "no such instruction",
    }
    for trial, facts in zip((first, second), board.trial_facts([1, 2]).values(), strict=True):
        assert trial.datetime_start is not None
        assert trial.datetime_complete is not None
        assert facts.started_at is not None
        assert trial.datetime_start.astimezone(UTC).replace(tzinfo=None) == facts.started_at
        assert trial.datetime_complete.astimezone(UTC).replace(tzinfo=None) == facts.recorded_at
        assert before <= facts.started_at < facts.recorded_at < before + timedelta(minutes=5)


def test_trials_keep_their_order_and_known_ones_are_not_repeated(board: Leaderboard, space: ValidSpace) -> None:
    study, trials = open_study(board, space), some(space, 12)
    write(board, study, space, trials[:3])
    writer = TrialWriter(board, study)
    writer.complete(parameters(space), trials[:5])
    writer.append(parameters(space), trials[5:8])
    writer.append(parameters(space), trials[8:])
    writer.close()
    written = trials_of(board, study)
    assert [trial.number for trial in written] == list(range(12))
    assert [trial.value for trial in written] == [trial.value_us for trial in trials]


def test_studies_of_older_files_are_shown_until_they_continue(board: Leaderboard, space: ValidSpace) -> None:
    study = open_study(board, space)
    old = optuna.create_study(study_name=study.name, storage=board.url, direction="minimize")
    old.add_trial(optuna.trial.create_trial(value=7.0))
    shown = optuna.load_study(study_name=study.title, storage=optuna_studies(board))
    assert [trial.value for trial in shown.get_trials()] == [7.0]
    write(board, study, space, some(space, 2))
    shown = optuna.load_study(study_name=study.title, storage=optuna_studies(board))
    assert [trial.value for trial in shown.get_trials()] == [5.0, 6.0]


def test_a_study_that_earlier_versions_named_otherwise_continues(board: Leaderboard, space: ValidSpace) -> None:
    study = open_study(board, space)
    write(board, FormerStudy(study.id, study.key, study.created_at), space, some(space, 2))
    write(board, study, space, some(space, 3)[2:])
    storage = optuna_studies(board)
    assert optuna.get_all_study_names(storage) == [study.title]
    assert len(optuna.load_study(study_name=study.title, storage=storage).trials) == 3


def test_without_a_trial_the_journal_stays_empty(board: Leaderboard, space: ValidSpace) -> None:
    study = open_study(board, space)
    write(board, study, space, [])
    assert list(board.journal(study)) == []


def test_several_searches_may_write_at_once(board: Leaderboard, space: ValidSpace) -> None:
    many = 4
    studies = [open_study(board, space, seed) for seed in range(many)]

    def one(study: Study) -> None:
        with Leaderboard(board.url) as own:
            write(own, study, space, some(space, 3))

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(one, studies))
    assert [len(trials_of(board, study)) for study in studies] == [3] * many


@pytest.mark.parametrize("entry", [b"", b"\xff", b"[]", b"{}", b'{"op_code": 99, "worker_id": "a"}', b'{"op_code": 4}'])
def test_a_damaged_journal_is_refused(board: Leaderboard, space: ValidSpace, entry: bytes) -> None:
    study = open_study(board, space)
    board.append_journal(study, [entry])
    writer = TrialWriter(board, study)
    writer.append(parameters(space), some(space, 2))
    with pytest.raises(StoreError, match=r"board\.db: .*Optuna") as caught:
        writer.close()
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match=r"board\.db"):
        writer.append(parameters(space), some(space, 2))


INT = {"name": "IntDistribution", "attributes": {"log": False, "step": 1, "low": float("-inf"), "high": 4}}
CHOICE = {"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}


@pytest.mark.parametrize(("value", "distribution"), [(9, CHOICE), (1, INT)], ids=["no choice", "infinite bound"])
def test_a_trial_outside_its_distribution_is_refused(
    board: Leaderboard, space: ValidSpace, value: int, distribution: dict[str, object]
) -> None:
    study = open_study(board, space)
    write(board, study, space, some(space, 1))
    (entry,) = (log for line in board.journal(study) if (log := json.loads(line))["op_code"] == 4)
    entry |= {"params": {"x": value}, "distributions": {"x": json.dumps(distribution)}}
    board.append_journal(study, [json.dumps(entry).encode()])
    for use in (lambda: optuna_studies(board), lambda: write(board, study, space, some(space, 2))):
        with pytest.raises(StoreError, match=r"board\.db: .*Optuna"):
            use()


def test_tables_of_another_version_of_optuna_are_refused(board: Leaderboard, space: ValidSpace) -> None:
    optuna.create_study(study_name=open_study(board, space).name, storage=board.url)
    with closing(sqlite3.connect(board.path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
    with pytest.raises(StoreError, match=r"board\.db: .*Optuna"):
        optuna_studies(board)


def test_a_failed_write_is_raised_by_a_later_call(board: Leaderboard, space: ValidSpace) -> None:
    study = open_study(board, space)
    write(board, study, space, some(space, 1))
    with closing(sqlite3.connect(board.path)) as connection, connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON evo_optuna_journal BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    with pytest.raises(StoreError, match=r"board\.db"):
        write(board, study, space, [replace(one, value_us=1.0) for one in some(space, 2)])
