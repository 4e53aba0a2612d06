"""The store through its public methods; the file itself is checked with ``sqlite3``."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from evoengine.errors import StoreError
from evoengine.leaderboard.records import LeaseStatus, RowFilter, Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import (
    Config,
    DeviceInfo,
    DType,
    Duel,
    Evaluation,
    Problem,
    Resources,
    Status,
    Timing,
    Verdict,
)

ROOT = Path(__file__).parents[2]
GPU = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, driver="13.0", nvrtc="13.0.88")
MODEL = DeviceInfo("emulator", "NVIDIA L4", "sm_89", True, nvrtc="13.0.88")
PROBLEM = Problem(1, 8, 512, 64, kv_heads=2, dtype=DType.BF16, causal=True)


def key(device: DeviceInfo = GPU, seed: int = 0, method: str = "graph-warm") -> StudyKey:
    return StudyKey(PROBLEM, "mma", device, method, "evolution", seed, "space1")


def config(number: int) -> Config:
    return Config.of("mma", {"BLOCK": number, "LAYOUT": "swizzle", "UNROLL": number % 2 == 0})


def evaluation(number: int, us: float | None = None, code: str = "", status: Status = Status.OK) -> Evaluation:
    """Returns a complete evaluation; without a time it failed."""
    timing = None
    if us is not None:
        timing = Timing(us, us - 0.1, us + 0.1, False, "graph-warm", (us, us + 0.1, us - 0.1), 10.0, "flash")
    return Evaluation(
        config=config(number),
        status=status,
        reason="" if status is Status.OK else "because",
        source_hash=f"s{number}",
        code_hash=code or f"c{number}",
        template_hash="t1",
        source=f"// kernel {number} – ü\n" * 100,
        resources=Resources(128, 8, 16, 1024, 32768, 256),
        verdict=Verdict(us is not None, 1e-3, 2e-3, 3e-4, 6, "ragged", "" if us is not None else "off by one"),
        timing=timing,
        stage_seconds={"compile": 0.5, "bench": 0.25},
    )


def prediction(number: int, us: float, method: str) -> Evaluation:
    """Returns a complete evaluation with a predicted time."""
    measured = evaluation(number, us)
    assert measured.timing is not None
    return replace(measured, timing=replace(measured.timing, predicted=True, method=method))


def duel(accepted: bool = True) -> Duel:
    return Duel((4.8, 4.81), (5.0, 5.01), 0.04, 0.035, 0.03, accepted)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'board.db'}"


def test_an_evaluation_round_trips(url: str) -> None:
    stored = evaluation(1, 5.0)
    with Leaderboard(url) as board:
        row_id = board.record(board.open_study(key()), stored, trial_number=7)
    with Leaderboard(url) as board:
        record = board.get(row_id)
    assert record.evaluation == stored
    assert record.study.key == replace(key(), device=replace(GPU, driver="", nvrtc=""))
    assert (record.trial_number, record.driver, record.nvrtc) == (7, "13.0", "13.0.88")
    assert record.row.speedup == pytest.approx(2.0)
    assert record.row.smem_bytes == 1024 + 32768
    assert (record.row.problem, record.row.arch, record.row.config) == (PROBLEM.key, "sm_90", config(1).as_dict())


RICH = replace(PROBLEM, window_left=100, softcap=30.0, sink=True, lse=True)
PACKED = Problem(3, 8, 40, 72, window_right=5, lengths_q=(7, 40, 0), lengths_kv=(40, 9, 12))


@pytest.mark.parametrize("problem", [RICH, PACKED], ids=lambda problem: problem.key)
def test_a_problem_with_features_round_trips(url: str, problem: Problem) -> None:
    with Leaderboard(url) as board:
        row_id = board.record(board.open_study(replace(key(), problem=problem)), evaluation(1, 5.0))
        assert board.open_study(replace(key(), problem=problem)).id != board.open_study(key()).id
    with Leaderboard(url) as board:
        record = board.get(row_id)
    assert record.study.key.problem == problem
    assert record.row.problem == problem.key


def test_a_problem_of_an_older_version_is_read(url: str, tmp_path: Path) -> None:
    """A problem stored before windows, softcap, sinks and packed sequences existed."""
    old = (
        '{"batch": 1, "causal": true, "dtype": "bf16", "head_dim": 64, "heads": 8, "kv_heads": 2, '
        '"seq_kv": 512, "seq_q": 512}'
    )
    with Leaderboard(url) as board:
        row_id = board.record(board.open_study(key()), evaluation(1, 5.0))
    with closing(sqlite3.connect(tmp_path / "board.db")) as file, file:
        assert file.execute("UPDATE evo_studies SET problem_json = ?", (old,)).rowcount == 1
    with Leaderboard(url) as board:
        assert board.get(row_id).study.key.problem == PROBLEM
        assert board.open_study(key()).id == board.get(row_id).study.id


def test_a_config_is_stored_once_per_study(url: str) -> None:
    with Leaderboard(url) as board:
        study, other = board.open_study(key()), board.open_study(key(seed=1))
        first = board.record(study, evaluation(1, 5.0))
        assert board.record(study, evaluation(1, 4.0)) == first
        assert board.record(other, evaluation(1, 4.0)) != first
        assert [entry.evaluation.timing.median_us for entry in board.evaluations(study) if entry.evaluation.timing] == [
            5.0
        ]


def test_the_same_command_opens_the_same_study(url: str) -> None:
    with Leaderboard(url) as board:
        study = board.open_study(key())
        assert board.open_study(key()).id == study.id
        assert board.open_study(replace(key(), device=replace(GPU, driver="14.0"))).id == study.id
        changed = [
            key(seed=1),
            key(device=MODEL),
            key(method="graph-cold"),
            replace(key(), strategy="tpe"),
            replace(key(), space_key="space2"),
            replace(key(), problem=replace(PROBLEM, seq_q=256)),
        ]
        assert len({board.open_study(other).id for other in changed} | {study.id}) == 1 + len(changed)
        assert [entry.key.seed for entry in board.studies()][:2] == [0, 1]


def test_duplicates_do_not_count_and_a_kernel_counts_once(url: str) -> None:
    with Leaderboard(url) as board:
        study = board.open_study(key())
        board.record(study, evaluation(1, 5.0, code="x"))
        board.record(study, evaluation(2, 5.0, code="x"))
        board.record(study, evaluation(3, None, code="x", status=Status.DUPLICATE))
        board.record(study, evaluation(4, None, status=Status.PARITY_FAILED))
        board.record(study, replace(evaluation(5, None, status=Status.COMPILE_FAILED), code_hash=""))
        board.record(study, replace(evaluation(6, None, status=Status.COMPILE_FAILED), code_hash=""))
        assert board.evaluated(study) == 4
        counts = board.counts(study)
    assert counts == {Status.OK: 2, Status.COMPILE_FAILED: 2, Status.PARITY_FAILED: 1, Status.DUPLICATE: 1}


def test_ranks_stay_within_a_scope_and_share_a_rank_for_one_kernel(url: str) -> None:
    with Leaderboard(url) as board:
        measured, predicted = board.open_study(key()), board.open_study(key(MODEL, method="model-v1"))
        other_seed = board.open_study(key(seed=1))
        for number, us in ((1, 5.0), (2, 4.0), (3, 6.0)):
            board.record(measured, evaluation(number, us))
        again = board.record(other_seed, evaluation(2, 4.1))
        fast = board.record(predicted, prediction(9, 1.0, "model-v1"))
        failed = board.record(measured, evaluation(4, None, status=Status.TIMEOUT))
        rows = board.rows()
        everything = board.rows(RowFilter(statuses=()))
        only_cuda = board.rows(RowFilter(device_kind="cuda", limit=2))
        elites = board.elites(measured, 2)
    assert {(row.id, row.rank) for row in rows} == {(2, 1), (again, 1), (1, 2), (3, 3), (fast, 1)}
    assert {row.id: row.predicted for row in rows}[fast] is True
    assert {row.id: row.rank for row in everything}[failed] is None
    assert [row.rank for row in only_cuda] == [1, 1]
    assert [row.id for row in elites] == [2, 1]


def test_ranks_do_not_depend_on_filters(url: str) -> None:
    with Leaderboard(url) as board:
        study, other = board.open_study(key()), board.open_study(replace(key(), family="wgmma"))
        board.record(study, evaluation(1, 5.0))
        board.record(other, replace(evaluation(2, 4.0), config=Config.of("wgmma", {"BLOCK": 2})))
        assert [row.rank for row in board.rows(RowFilter(family="mma"))] == [2]
        assert [row.rank for row in board.rows(RowFilter(family="wgmma"))] == [1]


def test_only_an_accepted_duel_replaces_a_champion(url: str) -> None:
    with Leaderboard(url) as board:
        study = board.open_study(key())
        scope = study.scope
        first, second, third = (board.record(study, evaluation(n, us)) for n, us in ((1, 5.0), (2, 4.9), (3, 4.5)))
        assert board.champion(scope) is None
        assert board.record_challenge(scope, first, None, None)
        assert not board.record_challenge(scope, second, first, duel(accepted=False))
        assert board.champion(scope).id == first  # type: ignore[union-attr]
        assert not board.record_challenge(scope, second, None, None), "the scope has a champion"
        with pytest.raises(StoreError, match=r"row \d+ cannot replace row \d+"):
            board.record_challenge(scope, third, first, None)
        assert board.record_challenge(scope, third, first, duel())
        assert not board.record_challenge(scope, second, first, duel()), "the challenged champion was replaced"
        champion = board.champion(scope)
        history = [(c.evaluation_id, c.champion_id, c.accepted) for c in board.challenges(scope)]
        assert champion is not None
        assert (champion.id, champion.champion, champion.rank) == (third, True, 1)
        assert board.get(third).challenges[-1].duel == duel()
        assert board.champion(board.open_study(key(MODEL)).scope) is None
        assert [row.id for row in board.rows() if row.champion] == [third]
    assert history == [(first, None, True), (second, first, False), (third, first, True)]


def test_leases_keep_two_searches_apart_and_within_the_budget(url: str) -> None:
    with Leaderboard(url) as one, Leaderboard(url) as two:
        study = one.open_study(key())
        assert one.acquire_lease(study, config(1), 3) is LeaseStatus.GRANTED
        assert two.acquire_lease(study, config(1), 3) is LeaseStatus.TAKEN
        assert two.acquire_lease(study, config(2), 3) is LeaseStatus.GRANTED
        one.record(study, evaluation(1, 5.0))
        assert two.acquire_lease(study, config(1), 3) is LeaseStatus.TAKEN
        assert one.acquire_lease(study, config(3), 3) is LeaseStatus.GRANTED
        assert two.acquire_lease(study, config(4), 3) is LeaseStatus.BUDGET_FULL
        one.record(study, evaluation(3, None, code="c1", status=Status.DUPLICATE))
        assert two.acquire_lease(study, config(4), 3) is LeaseStatus.GRANTED
        two.release_leases(study)
        assert one.adopt_orphans(study) == []
        assert one.acquire_lease(study, config(4), 2) is LeaseStatus.GRANTED


LEASE_AND_DIE = """
import os, signal
from tests.leaderboard.test_leaderboard import *
board = Leaderboard({url!r})
study = board.open_study(key())
board.record(study, evaluation(1, 5.0))
board.acquire_lease(study, config(2), 100)
board.acquire_lease(study, config(3), 100)
print("leased", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_of_a_killed_process_stay_and_its_leases_are_adopted(url: str) -> None:
    script = LEASE_AND_DIE.format(url=url)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.returncode) == ("leased\n", -9), done.stderr
    with Leaderboard(url) as board:
        study = board.open_study(key())
        assert board.evaluated(study) == 1
        assert board.get(1).evaluation == evaluation(1, 5.0)
        assert set(board.adopt_orphans(study)) == {config(2), config(3)}
        assert board.adopt_orphans(study) == []
        assert board.acquire_lease(study, config(2), 2) is LeaseStatus.GRANTED, "an adopted lease counts"


LEASE_AND_WAIT = LEASE_AND_DIE.replace("os.kill(os.getpid(), signal.SIGKILL)", "sys.stdin.read()")


def test_leases_of_a_stopped_process_are_adopted_and_those_of_a_running_one_are_not(url: str) -> None:
    command = [sys.executable, "-c", "import sys" + LEASE_AND_WAIT.format(url=url)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leased\n"
        with Leaderboard(url) as board:
            study = board.open_study(key())
            assert board.adopt_orphans(study) == []
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            assert set(board.adopt_orphans(study)) == {config(2), config(3)}
        process.kill()


def test_leases_keep_their_family(url: str, tmp_path: Path) -> None:
    configs = {config(1), Config.of("wmma", config(1).as_dict()), Config.of("scalar", {"BLOCK": 1})}
    with Leaderboard(url) as board:
        study = board.open_study(replace(key(), family="mma,scalar,wmma"))
        assert all(board.acquire_lease(study, one, 10) is LeaseStatus.GRANTED for one in configs)
    with closing(sqlite3.connect(tmp_path / "board.db")) as file, file:
        file.execute("UPDATE evo_claims SET owner = 'elsewhere:1:1:1'")
    with Leaderboard(url) as board:
        assert set(board.adopt_orphans(study)) == configs


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.commit()


def other_version(path: Path) -> None:
    Leaderboard(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def not_a_database(path: Path) -> None:
    path.write_text("dear diary, " * 1000)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(foreign_database, "another program"), (other_version, "version 99"), (not_a_database, "not an EvoEngine")],
)
def test_a_foreign_file_is_refused_in_one_line_and_left_alone(tmp_path: Path, spoil: object, words: str) -> None:
    path = tmp_path / "board.db"
    assert callable(spoil)
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=words) as caught:
        Leaderboard(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["board.db"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////no/such/folder/board.db", "no folder"),
        ("sqlite:////proc/board.db", "cannot be opened for writing"),
        ("sqlite:////tmp", "is a folder"),
        ("sqlite://", "names no file"),
        ("mysql://host/db", "SQLite file"),
        ("board.db", "not a database URL"),
        ("postgresql+psycopg://me:s3cret@host/db?connect_timeout=ten", "connect_timeout 'ten'"),
    ],
)
def test_an_unusable_url_is_refused_in_one_line(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        Leaderboard(url)
    assert "\n" not in str(caught.value)


def test_reading_does_not_create_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run a search first"):
        Leaderboard(f"sqlite:///{tmp_path / 'board.db'}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_locked_file_raises_and_nothing_is_lost(url: str) -> None:
    with Leaderboard(url, busy_timeout_s=0.05) as board:
        study = board.open_study(key())
        board.record(study, evaluation(1, 5.0))
        with closing(sqlite3.connect(board.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="locked"):
                board.record(study, evaluation(2, 4.0))
            assert board.evaluated(study) == 1, "readers do not wait for a writer"
            other.execute("ROLLBACK")
        board.record(study, evaluation(2, 4.0))
        assert board.evaluated(study) == 2


def fill(board: Leaderboard, study: Study, recorded: list[int]) -> None:
    """Records until the disk is full."""
    for number in range(1000):
        source = os.urandom(1500).hex()
        recorded.append(board.record(study, replace(evaluation(number, 5.0 + number), source=source)))


def test_a_full_disk_raises_and_nothing_is_lost(tmp_path: Path) -> None:
    @event.listens_for(Pool, "connect")
    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 60")  # same error as for a full disk

    with ExitStack() as stack:
        stack.callback(event.remove, Pool, "connect", limit)
        board = stack.enter_context(Leaderboard(f"sqlite:///{tmp_path / 'board.db'}"))
        study = board.open_study(key())
        recorded: list[int] = []
        with pytest.raises(StoreError, match="disk is full"):
            fill(board, study, recorded)
        assert 0 < len(recorded) < 1000
        assert board.evaluated(study) == len(recorded)
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as reopened:
        assert reopened.evaluated(reopened.open_study(key())) == len(recorded)


def test_a_missing_row_raises(url: str) -> None:
    with Leaderboard(url) as board, pytest.raises(StoreError, match="no row 7"):
        board.get(7)


WRITER = """
from tests.leaderboard.test_leaderboard import *
with Leaderboard({url!r}) as board:
    study = board.open_study(key())
    for number in range({first}, {first} + 40):
        board.acquire_lease(study, config(number), 1000)
        board.record(study, evaluation(number, 5.0 + number))
"""


def test_two_processes_write_one_new_file(url: str) -> None:
    scripts = [WRITER.format(url=url, first=first) for first in (0, 20)]
    writers = [
        subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for script in scripts
    ]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    with Leaderboard(url) as board:
        study = board.open_study(key())
        assert board.evaluated(study) == 60
        assert board.counts() == {Status.OK: 60}


def test_the_file_is_in_wal_mode_and_a_source_is_stored_once(url: str, tmp_path: Path) -> None:
    with Leaderboard(url) as board:
        for seed in (0, 1):
            board.record(board.open_study(key(seed=seed)), evaluation(1, 5.0))
        path = board.path
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM evo_sources").fetchone() == (1,)
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with Leaderboard(f"sqlite:///{copy}", create=False) as board:
        assert len(board.rows()) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("samples_json", "[1.0, true]"),
        ("samples_json", "not JSON"),
        ("status", "unheard_of"),
        ("config_json", "[]"),
        ("registers", "many"),
        ("notes_json", "{}"),
        ("telemetry_json", "{}"),
    ],
)
def test_malformed_data_is_refused_with_file_and_row(url: str, column: str, value: str) -> None:
    with Leaderboard(url) as board:
        row_id = board.record(board.open_study(key()), evaluation(1, 5.0))
        with closing(sqlite3.connect(board.path)) as file, file:
            file.execute(f"UPDATE evo_evaluations SET {column} = ?", (value,))
        with pytest.raises(StoreError, match=rf"{board.path}: .*row {row_id}: .*") as caught:
            board.get(row_id)
    assert "\n" not in str(caught.value)
    if column.endswith("_json"):
        assert column in str(caught.value)


def test_a_malformed_study_is_named_and_left_out(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Leaderboard(url) as board:
        board.open_study(key())
        with closing(sqlite3.connect(board.path)) as file, file:
            file.execute('UPDATE evo_studies SET problem_json = \'{"batch": 1, "tail": 2}\'')
        assert board.studies() == []
    (warning,) = caplog.messages
    assert warning.startswith(f"{board.path}: ")
    assert "study 1: " in warning
    assert "tail" in warning
