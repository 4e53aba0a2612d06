"""The search loop on a synthetic device: budget, duplicates, failures, champions, stopping. Nothing is compiled."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from evoengine.errors import DefectError, MissingDependencyError, StoreError, WorkersLostError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.search.candidate.jobs import Job, ResultT
from evoengine.search.candidate.results import Candidate, Examination
from evoengine.search.events import (
    ChallengeRejected,
    ChampionAccepted,
    Compiled,
    Event,
    Examined,
    Finished,
    Proposed,
    Recorded,
    Started,
    WorkerLost,
)
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings, StopReason
from evoengine.search.trial_log import open_optuna_study
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space, true_us
from tests.search.synthetic import (
    Listener,
    SyntheticCompiler,
    SyntheticExaminer,
    many_faults,
    open_search,
    pad_and_unroll_are_dead,
    study_key,
    unroll_is_dead,
)

TINY = {"TILE_M": (16, 64), "TILE_N": (32, 64), "WARPS": (1, 4), "STAGES": (2,), "PAD": (0, 8), "CTAS": (1,)}


def test_the_budget_is_met_exactly_and_everything_is_recorded(board: Leaderboard, space: ValidSpace) -> None:
    listener = Listener()
    examiner = SyntheticExaminer()
    search, study = open_search(board, space, SearchSettings(budget=50), SyntheticCompiler(), examiner, listener)
    result = search.run()
    stored = board.evaluations(study)
    assert (result.stop, result.progress.evaluated, result.progress.new) == (StopReason.BUDGET_REACHED, 50, 50)
    assert len(stored) == len(examiner.examined) == len(listener.of(Recorded)) == len(listener.of(Proposed)) == 50
    for entry in stored:
        assert entry.evaluation.timing is not None
        assert entry.evaluation.timing.median_us == true_us(entry.evaluation.config)
    best = min(stored, key=lambda entry: true_us(entry.evaluation.config))
    assert result.progress.best_id == best.id == result.elites[0].id
    assert result.progress.best_speedup == pytest.approx(2.0)
    assert result.stage_seconds == {"compile": 25.0, "bench": 12.5}
    assert isinstance(listener.events[0], Started)
    assert listener.events[-1] == Finished(result)


@pytest.mark.parametrize(("head", "compiled"), [(0, 4 + 1 + SearchSettings.compile_queue + 4), (25, 25)])
def test_proposals_that_depend_on_no_outcome_are_compiled_while_the_device_starts(
    board: Leaderboard, space: ValidSpace, head: int, compiled: int
) -> None:
    compiler, many = SyntheticCompiler(workers=4), threading.Event()

    def count(config: Config) -> str:
        if len(compiler.compiled) >= compiled:
            many.set()
        return ""

    def wait(config: Config) -> str:
        return "" if many.wait(60.0) else "parity"

    compiler.fault_of = count
    settings = SearchSettings(budget=30, head=head)
    search, study = open_search(board, space, settings, compiler, SyntheticExaminer(fault_of=wait), Listener())
    search.run()
    assert board.counts(study) == {Status.OK: 30}


def test_the_device_takes_the_oldest_proposal_first(board: Leaderboard, space: ValidSpace) -> None:
    count, slow = 25, 3
    others_compiled, all_compiled = threading.Event(), threading.Event()

    class Watching(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            compiled = len(self.of(Compiled))
            for number, reached in ((count - slow, others_compiled), (count, all_compiled)):
                if compiled == number:
                    reached.set()

    compiler, examiner, listener = SyntheticCompiler(workers=slow + 1), SyntheticExaminer(), Watching()

    def the_first_take_longest(config: Config) -> str:
        return "" if config.key not in compiler.compiled[:slow] or others_compiled.wait(60.0) else "compile"

    def gets_ready(config: Config) -> str:
        return "" if all_compiled.wait(60.0) else "parity"

    compiler.fault_of, examiner.fault_of = the_first_take_longest, gets_ready
    settings = SearchSettings(budget=count, head=count)
    search, study = open_search(board, space, settings, compiler, examiner, listener)
    search.run()
    assert board.counts(study) == {Status.OK: count}
    order = [event.config.key for event in listener.events if isinstance(event, Proposed)]
    _under_way, _next, *later = [order.index(key) for key in examiner.examined]
    assert later == sorted(later)
    assert later[0] == 0


def test_after_the_head_a_proposal_is_made_when_a_compiler_can_take_it(board: Leaderboard, space: ValidSpace) -> None:
    """A device that is faster than the compilers empties the head; the proposals after it do not refill the queue."""
    workers, compile_queue, head = 2, 1, 30
    waiting: list[int] = []
    full = threading.Event()

    class Watching(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            if isinstance(event, Proposed) and len(self.of(Proposed)) > head:
                waiting.append(len(self.of(Proposed)) - len(self.of(Compiled)))
                if waiting[-1] >= workers + compile_queue:
                    full.set()

    def slowly(config: Config) -> str:
        if waiting and not full.wait(10.0):  # however slow the machine is, the compilers are slower than the loop
            full.set()
        time.sleep(0.005)
        return ""

    listener, compiler = Watching(), SyntheticCompiler(workers=workers, fault_of=slowly)
    settings = SearchSettings(budget=60, head=head, compile_queue=compile_queue, in_order=False)
    search, study = open_search(board, space, settings, compiler, SyntheticExaminer(), listener)
    search.run()
    assert board.counts(study) == {Status.OK: 60}
    assert len(waiting) == 60 - head
    assert max(waiting) == workers + compile_queue


def test_results_that_wait_are_taken_before_the_next_proposal(board: Leaderboard, space: ValidSpace) -> None:
    """A proposal can take longer than an examination: several in a row would keep a device waiting."""
    head = 10

    class AtOnce(SyntheticCompiler):
        def submit(self, job: Job[ResultT]) -> Future[ResultT]:
            done: Future[ResultT] = Future()
            done.set_result(super().submit(job).result())
            return done

    listener = Listener()
    settings = SearchSettings(budget=40, head=head, compile_queue=8)
    search, _ = open_search(board, space, settings, AtOnce(workers=1), SyntheticExaminer(), listener)
    search.run()
    kinds = [type(event) for event in listener.events if isinstance(event, Proposed | Compiled)]
    assert kinds[:head] == [Proposed] * head
    assert kinds[-2 * (40 - head - 1) :] == [Proposed, Compiled] * (40 - head - 1)


def test_where_proposals_wait_for_nothing_one_slow_compilation_holds_no_other_back(
    board: Leaderboard, space: ValidSpace
) -> None:
    budget, others_recorded = 80, threading.Event()

    class Watching(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            if len(self.of(Recorded)) == budget - 1:
                others_recorded.set()

    compiler, listener = SyntheticCompiler(workers=2), Watching()

    def the_first_takes_longest(config: Config) -> str:
        return "" if config.key != compiler.compiled[0] or others_recorded.wait(60.0) else "compile"

    compiler.fault_of = the_first_takes_longest
    settings = SearchSettings(budget=budget, in_order=False)
    search, study = open_search(board, space, settings, compiler, SyntheticExaminer(), listener)
    search.run()
    assert board.counts(study) == {Status.OK: budget}
    recorded = [event.evaluation.config.key for event in listener.events if isinstance(event, Recorded)]
    assert recorded[-1] == compiler.compiled[0]


def test_a_finished_search_says_so_and_a_larger_budget_goes_on(board: Leaderboard, space: ValidSpace) -> None:
    for budget, new in ((20, 20), (20, 0), (35, 15)):
        compiler = SyntheticCompiler()
        search, study = open_search(board, space, SearchSettings(budget=budget), compiler, SyntheticExaminer())
        result = search.run()
        assert (result.stop, result.progress.new) == (StopReason.BUDGET_REACHED, new)
        assert len(compiler.compiled) in (new, new + 1), "at most the champion of the earlier run is built again"
    assert board.evaluated(study) == 35


def test_duplicates_cost_nothing_and_are_not_examined(board: Leaderboard, space: ValidSpace) -> None:
    compiler, examiner = SyntheticCompiler(code_of=pad_and_unroll_are_dead), SyntheticExaminer()
    search, study = open_search(board, space, SearchSettings(budget=120), compiler, examiner)
    result = search.run()
    stored = {entry.evaluation.config.key: entry.evaluation for entry in board.evaluations(study)}
    duplicates = [entry for entry in stored.values() if entry.status is Status.DUPLICATE]
    assert len(duplicates) > 5, "the space must make duplicates for this test to mean something"
    assert result.progress.duplicates == len(duplicates)
    assert result.progress.evaluated == len(examiner.examined) == 120
    assert len(stored) == 120 + len(duplicates)
    for duplicate in duplicates:
        first = stored[duplicate.duplicate_of]
        assert (first.code_hash, first.status) == (duplicate.code_hash, Status.OK)
        assert duplicate.timing is None


@pytest.mark.parametrize("fault", ["resource", "refused"])
def test_machine_code_that_is_not_run_counts_once(board: Leaderboard, tmp_path: Path, fault: str) -> None:
    """The search counts as the leaderboard does, so that it uses up the budget."""
    space = build_space(tmp_path, TINY)
    compiler = SyntheticCompiler(code_of=unroll_is_dead, fault_of=lambda _: fault)
    search, study = open_search(board, space, SearchSettings(budget=1000), compiler, SyntheticExaminer())
    result = search.run()
    assert len(board.evaluations(study)) == space.size
    assert result.progress.evaluated == board.evaluated(study) == space.size / 2


def test_all_trials_are_written_when_leases_cannot_be_released(
    board: Leaderboard, space: ValidSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("the disk is full")

    settings, compiler, before = SearchSettings(budget=5), SyntheticCompiler(), threading.enumerate()
    search, study = open_search(board, space, settings, compiler, SyntheticExaminer(), log_trials=True)
    monkeypatch.setattr(board, "release_leases", fails)
    search.run()
    assert [one for one in threading.enumerate() if one.name == "optuna-trials" and one not in before] == []
    assert len(open_optuna_study(board, study).trials) == 5


def test_a_space_that_ends_before_the_budget_ends_the_search(board: Leaderboard, tmp_path: Path) -> None:
    space = build_space(tmp_path, TINY)
    compiler = SyntheticCompiler(code_of=unroll_is_dead)
    search, study = open_search(board, space, SearchSettings(budget=1000), compiler, SyntheticExaminer())
    result = search.run()
    assert result.stop is StopReason.SPACE_EXHAUSTED
    assert len(board.evaluations(study)) == space.size
    assert result.progress.evaluated == space.size / 2


def test_failing_candidates_never_end_a_search(board: Leaderboard, space: ValidSpace) -> None:
    compiler, examiner = SyntheticCompiler(fault_of=many_faults), SyntheticExaminer(fault_of=many_faults)
    search, study = open_search(board, space, SearchSettings(budget=120), compiler, examiner)
    result = search.run()
    assert result.progress.evaluated == 120
    expected = {
        "": Status.OK,
        "compile": Status.COMPILE_FAILED,
        "resource": Status.RESOURCE_LIMIT,
        "parity": Status.PARITY_FAILED,
        "timeout": Status.TIMEOUT,
        "raise compile": Status.COMPILE_FAILED,
        "raise examine": Status.CRASHED,
    }
    seen = set()
    for entry in board.evaluations(study):
        fault = many_faults(entry.evaluation.config)
        seen.add(fault)
        assert entry.evaluation.status is expected[fault]
        assert bool(entry.evaluation.reason) == bool(fault)
    assert seen == set(expected)


def test_a_search_in_which_nothing_works_ends_with_its_budget(board: Leaderboard, space: ValidSpace) -> None:
    examiner = SyntheticExaminer(fault_of=lambda config: "parity")
    search, _ = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), examiner)
    result = search.run()
    assert (result.progress.evaluated, result.champion, result.elites) == (30, None, ())


@pytest.mark.parametrize("kind", ["raise compile", "raise examine"])
def test_crashes_of_every_candidate_do_not_use_up_the_budget(board: Leaderboard, space: ValidSpace, kind: str) -> None:
    """Everything crashes alike: the search ends at once without a row, and the next one tries everything again."""
    compiler, examiner = SyntheticCompiler(fault_of=lambda _: kind), SyntheticExaminer(fault_of=lambda _: kind)
    search, study = open_search(board, space, SearchSettings(budget=500), compiler, examiner)
    with pytest.raises(DefectError, match=r"\b8 times.*(killed|ILLEGAL_ADDRESS)"):
        search.run()
    assert board.evaluations(study) == []
    tried = set(compiler.compiled)
    compiler = SyntheticCompiler()
    search, _ = open_search(board, space, SearchSettings(budget=40), compiler, SyntheticExaminer())
    assert search.run().progress.evaluated == 40
    assert tried <= set(compiler.compiled)


@pytest.mark.parametrize("works_first", [False, True])
@pytest.mark.parametrize("kind", ["raise compile", "raise examine"])
@pytest.mark.every(3)
def test_a_stop_records_crashes_only_after_another_outcome(
    board: Leaderboard, space: ValidSpace, kind: str, works_first: bool
) -> None:
    """Otherwise the compiler or the device may be at fault, and the next search tries the candidates again."""
    examiner, compiler = SyntheticExaminer(), SyntheticCompiler(workers=1)
    done = compiler.compiled if kind == "raise compile" else examiner.examined
    compiler.fault_of = examiner.fault_of = lambda _: "" if works_first and len(done) <= 10 else kind
    crashed = Status.COMPILE_FAILED if kind == "raise compile" else Status.CRASHED

    class StopAtCrash(Listener):
        def notify(self, event: Event) -> None:
            if isinstance(event, Compiled | Examined) and event.status is crashed:
                search.request_stop()

    search, study = open_search(board, space, SearchSettings(budget=100), compiler, examiner, StopAtCrash())
    assert search.run().stop is StopReason.INTERRUPTED
    assert (board.counts(study).get(crashed, 0) > 0) == works_first
    tried, repaired = set(compiler.compiled), SyntheticCompiler()
    search, _ = open_search(board, space, SearchSettings(budget=40), repaired, SyntheticExaminer())
    assert search.run().progress.evaluated == 40
    assert works_first or (tried <= set(repaired.compiled) and board.counts(study) == {Status.OK: 40})


def test_crashes_alike_among_others_are_recorded(board: Leaderboard, space: ValidSpace) -> None:
    """Consecutive crashes are the candidates' if another outcome follows, or nothing."""
    examiner = SyntheticExaminer()
    compiler = SyntheticCompiler(workers=1)
    examiner.fault_of = lambda config: "raise examine" if len(examiner.examined) % 10 > 2 else ""
    search, study = open_search(board, space, SearchSettings(budget=40), compiler, examiner)
    assert search.run().progress.evaluated == 40
    counts = board.counts(study)
    assert counts[Status.CRASHED] == 28
    assert counts[Status.OK] == 12


def test_a_lost_device_is_no_fault_of_a_candidate(board: Leaderboard, space: ValidSpace) -> None:
    class Lost(SyntheticExaminer):
        def submit(self, job: Job[ResultT]) -> Future[ResultT]:
            future: Future[ResultT] = Future()
            future.set_exception(MissingDependencyError("no NVIDIA driver: install one"))
            return future

    search, study = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), Lost())
    with pytest.raises(MissingDependencyError):
        search.run()
    assert board.evaluations(study) == []


def test_a_crash_at_the_very_end_is_recorded(board: Leaderboard, tmp_path: Path) -> None:
    space = build_space(tmp_path, TINY)
    examiner = SyntheticExaminer()
    examiner.fault_of = lambda config: "raise examine" if len(examiner.examined) > space.size - 3 else ""
    search, study = open_search(board, space, SearchSettings(budget=1000), SyntheticCompiler(), examiner)
    assert search.run().stop is StopReason.SPACE_EXHAUSTED
    assert len(board.evaluations(study)) == space.size
    assert board.counts(study)[Status.CRASHED] == 3


def test_lost_workers_give_the_budget_back(board: Leaderboard, space: ValidSpace) -> None:
    """The last device is lost after ten candidates: their rows stay, and another search gets the leases at once."""

    class Failing(SyntheticExaminer):
        def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
            if len(self.examined) == 10:
                raise WorkersLostError("device worker 0 failed in 4 fresh processes")
            return super().examine(candidate, champion_us)

    search, study = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), Failing())
    with pytest.raises(WorkersLostError):
        search.run()
    before = board.evaluations(study)
    assert len(before) == 10
    with Leaderboard(board.url) as other:
        settings = SearchSettings(budget=30, deadline_s=600)  # it must not wait for the leases of the first one
        search, _ = open_search(other, space, settings, SyntheticCompiler(), SyntheticExaminer())
        result = search.run()
        assert (result.stop, result.progress.new) == (StopReason.BUDGET_REACHED, 20)
        after = other.evaluations(study)
    assert after[:10] == before
    assert all(entry.evaluation.ok for entry in after)


def test_a_lost_worker_is_reported_once_and_the_others_go_on(board: Leaderboard, space: ValidSpace) -> None:
    class Shrinking(SyntheticExaminer):
        def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
            if len(self.examined) == 5:
                self.lost = ("device worker 1 failed in 4 fresh processes",)
            return super().examine(candidate, champion_us)

    listener = Listener()
    search, _ = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), Shrinking(), listener)
    assert search.run().progress.evaluated == 30
    assert listener.of(WorkerLost) == [WorkerLost("device worker 1 failed in 4 fresh processes")]


# -- the champion rule ----------------------------------------------------------------------------------------------


def run_queue(
    board: Leaderboard, space: ValidSpace, times: list[float], examiner: SyntheticExaminer, predicted: bool = False
) -> tuple[list[Config], Listener]:
    """Evaluates the first configs of the space, in order and one by one, with these times."""
    configs = [space.config(index) for index in range(len(times))]
    by_config = dict(zip(configs, times, strict=True))
    examiner.value_of, examiner.predicted = by_config.__getitem__, predicted
    key = study_key(SearchSettings(budget=1), space)
    study = board.open_study(replace(key, device=replace(key.device, predicted=predicted)))
    listener = Listener()
    for budget in range(1, len(times) + 1):
        settings = SearchSettings(budget=budget)
        strategy = start_strategy(settings, space, board, study, starts=configs, log_trials=False)
        Search(settings, board, study, strategy, SyntheticCompiler(), examiner, listener).run()
    assert [entry.evaluation.config for entry in board.evaluations(study)] == configs
    return configs, listener


@pytest.mark.parametrize(("gain", "accepted"), [(0.029, False), (0.030, True), (0.2, True)])
@pytest.mark.parametrize("predicted", [True, False])
def test_a_champion_is_replaced_at_three_percent(
    board: Leaderboard, space: ValidSpace, gain: float, accepted: bool, predicted: bool
) -> None:
    # Repeated noise could push an effect of exactly 3 % to either side, so this duel has none.
    examiner = SyntheticExaminer(duel_noise=0.0)
    configs, listener = run_queue(board, space, [100.0, 100.0 * (1 - gain)], examiner, predicted)
    crowned = [event.row_id for event in listener.events if isinstance(event, ChampionAccepted)]
    assert crowned == ([1, 2] if accepted else [1])
    duels_wanted = [(configs[1].key, configs[0].key)] if accepted and not predicted else []
    assert examiner.duels == duels_wanted


def test_a_lucky_time_does_not_survive_the_duel(board: Leaderboard, space: ValidSpace) -> None:
    class Lucky(SyntheticExaminer):
        def _sample(self, config: Config, salt: str) -> float:
            return 100.0 * (1 + 0.001 * len(salt))  # in truth both take the same time

    _, listener = run_queue(board, space, [100.0, 90.0], Lucky())
    assert [event.row_id for event in listener.events if isinstance(event, ChampionAccepted)] == [1]
    refused = [event for event in listener.events if isinstance(event, ChallengeRejected)]
    assert refused[0].duel is not None
    assert abs(refused[0].duel.gain) < 0.001
    (study,) = board.studies()
    assert [entry.accepted for entry in board.challenges(study.scope)] == [True, False]


def test_a_duel_that_crashes_leaves_the_champion(board: Leaderboard, space: ValidSpace) -> None:
    class Fragile(SyntheticExaminer):
        def challenge(self, challenger: Candidate, champion: Candidate) -> None:  # type: ignore[override]
            raise RuntimeError("CUDA_ERROR_UNKNOWN")

    _, listener = run_queue(board, space, [100.0, 50.0], Fragile())
    (refused,) = [event for event in listener.events if isinstance(event, ChallengeRejected)]
    assert (refused.row_id, refused.duel) == (2, None)
    assert "CUDA_ERROR_UNKNOWN" in refused.reason


def fails_on(broken: Config | None, config: Config) -> str:
    """Fault of a compiler that fails on one config."""
    return "compile" if config == broken else ""


@pytest.mark.parametrize(("best_us", "crowned"), [(96.0, [1]), (90.0, [1, 2])])
def test_a_champion_that_no_longer_compiles_is_replaced_by_a_clear_gain_only(
    board: Leaderboard, space: ValidSpace, best_us: float, crowned: list[int]
) -> None:
    """Intervals are one percent to either side: 96 of 100 does not prove three percent, 90 does."""
    times = {space.config(0): 100.0, space.config(1): best_us}
    settings = SearchSettings(budget=1)
    study = board.open_study(study_key(settings, space))
    listener = Listener()
    for budget, broken in ((1, None), (2, space.config(0))):
        settings = SearchSettings(budget=budget)
        strategy = start_strategy(settings, space, board, study, starts=list(times), log_trials=False)
        compiler = SyntheticCompiler(fault_of=partial(fails_on, broken))
        examiner = SyntheticExaminer(value_of=times.__getitem__)
        Search(settings, board, study, strategy, compiler, examiner, listener).run()
    assert [event.row_id for event in listener.events if isinstance(event, ChampionAccepted)] == crowned


def test_champions_replace_each_other_in_turn(board: Leaderboard, space: ValidSpace) -> None:
    _, listener = run_queue(board, space, [100.0, 80.0, 79.0, 60.0, 70.0], SyntheticExaminer())
    assert [event.row_id for event in listener.events if isinstance(event, ChampionAccepted)] == [1, 2, 4]
    (study,) = board.studies()
    champion = board.champion(study.scope)
    assert champion is not None
    assert (champion.id, champion.rank) == (4, 1)


# -- stopping -------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def move(self, to_s: float) -> None:
        self._now_s = to_s


class Trigger(Listener):
    """Runs an action once a number of evaluations are recorded."""

    def __init__(self, after: int, action: Callable[[], object]) -> None:
        super().__init__()
        self._after = after
        self._action = action

    def notify(self, event: Event) -> None:
        super().notify(event)
        if isinstance(event, Recorded) and len(self.of(Recorded)) == self._after:
            self._action()


def test_ctrl_c_ends_the_search_with_everything_recorded(board: Leaderboard, space: ValidSpace) -> None:
    assert threading.current_thread() is threading.main_thread()
    trigger = Trigger(10, lambda: os.kill(os.getpid(), signal.SIGINT))
    examiner = SyntheticExaminer(slow_s=0.01)
    before = signal.getsignal(signal.SIGINT)
    search, study = open_search(board, space, SearchSettings(budget=500), SyntheticCompiler(), examiner, trigger)
    result = search.run()
    assert signal.getsignal(signal.SIGINT) is before
    assert result.stop is StopReason.INTERRUPTED
    assert 10 <= result.progress.evaluated <= 10 + 2 * examiner.workers
    assert len(board.evaluations(study)) == result.progress.evaluated == len(examiner.examined)
    assert result.champion is not None
    search, _ = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), SyntheticExaminer())
    assert search.run().progress.evaluated == 30


def test_a_second_ctrl_c_leaves_at_once_and_loses_nothing(board: Leaderboard, space: ValidSpace) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    search, study = open_search(
        board, space, SearchSettings(budget=500), SyntheticCompiler(), SyntheticExaminer(), Trigger(10, twice)
    )
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert board.evaluated(study) == 10
    search, _ = open_search(board, space, SearchSettings(budget=12), SyntheticCompiler(), SyntheticExaminer())
    assert search.run().progress.new == 2


def test_a_time_limit_ends_the_search(board: Leaderboard, space: ValidSpace) -> None:
    clock, examiner = Clock(), SyntheticExaminer()
    trigger = Trigger(20, partial(clock.move, 60.0))
    settings = SearchSettings(budget=10_000, deadline_s=60.0)
    search, study = open_search(board, space, settings, SyntheticCompiler(), examiner, trigger, clock)
    clock.move(59.9)
    result = search.run()
    assert result.stop is StopReason.TIME_LIMIT
    assert 20 <= result.progress.evaluated <= 20 + 2 * examiner.workers
    assert result.progress.evaluated == board.evaluated(study) == len(examiner.examined)


def test_a_kernel_that_hangs_does_not_hold_up_the_end(board: Leaderboard, space: ValidSpace) -> None:
    never, clock = threading.Event(), Clock()

    class Hanging(SyntheticExaminer):
        def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
            if len(self.examined) == 5:
                clock.move(61.0)
                never.wait(600)
            return super().examine(candidate, champion_us)

    settings = SearchSettings(budget=500, deadline_s=60.0, drain_s=0.2)
    search, study = open_search(board, space, settings, SyntheticCompiler(), Hanging(), clock=clock)
    try:
        result = search.run()
    finally:
        never.set()
    assert (result.stop, board.evaluated(study)) == (StopReason.TIME_LIMIT, 5)


def test_a_locked_leaderboard_ends_the_search_with_one_line(tmp_path: Path, space: ValidSpace) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}", busy_timeout_s=0.05) as board:
        with closing(sqlite3.connect(board.path, isolation_level=None)) as other:
            trigger = Trigger(10, lambda: other.execute("BEGIN IMMEDIATE"))
            compiler, examiner = SyntheticCompiler(), SyntheticExaminer()
            search, study = open_search(board, space, SearchSettings(budget=30), compiler, examiner, trigger)
            with pytest.raises(StoreError, match="locked"):
                search.run()
            other.execute("ROLLBACK")
        assert board.evaluated(study) == 10
        search, _ = open_search(board, space, SearchSettings(budget=30), SyntheticCompiler(), SyntheticExaminer())
        assert search.run().progress.new == 20
