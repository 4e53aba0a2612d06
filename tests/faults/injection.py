"""Searches of deliberately faulty candidates by the command line, and the rows that must result.

The family ``faulty`` (beside this file) computes attention, or fails as its tunable FAULT says. The space holds exactly
the wanted number of configs of each kind and is searched exhaustively. Some faults are injected from outside: a worker
that shows such a candidate in its process title receives a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Evaluation, Status
from tests.cli.calling import Done
from tests.warm import WarmPython

ROOT: Final = Path(__file__).resolve().parents[2]
GOOD: Final = "none"
SEED: Final = 20260
"""Seed of the inputs, the same in all searches."""

_TITLE_BYTES: Final = 15
_POLL_S: Final = 0.001


@dataclass(frozen=True)
class Fault:
    """One way to fail, and the status and reason that must be recorded."""

    status: Status
    reason: str
    """Pattern that the reason must match."""
    on_gpu: tuple[Status, str] | None = None
    """Status and pattern on a GPU, if they differ."""
    outside: tuple[str, signal.Signals, int] | None = None
    """Pool, signal and count: workers of the pool receive this signal so many times."""

    def expected(self, device: str) -> tuple[Status, str]:
        """Expected status, and pattern of the reason."""
        on_gpu = self.on_gpu if device.startswith("cuda") else None
        return on_gpu or (self.status, self.reason)


LAUNCH, PARITY = Status.LAUNCH_FAILED, Status.PARITY_FAILED
FAULTS: Final[Mapping[str, Fault]] = {
    GOOD: Fault(Status.OK, "^$"),
    "hang": Fault(Status.TIMEOUT, "deadline|infinite loop", (Status.TIMEOUT, "not done within .* hangs")),
    "illegal": Fault(LAUNCH, "out_of_bounds", (LAUNCH, "(?i)illegal")),
    "misaligned": Fault(LAUNCH, "misaligned", (LAUNCH, "(?i)misaligned")),
    "trap": Fault(LAUNCH, "trap", (LAUNCH, "(?i)failed: .*(launch|illegal instruction|trap)")),
    "launch": Fault(LAUNCH, ".", (LAUNCH, "(?i)failed: .*(invalid|configuration)")),
    "memory": Fault(LAUNCH, "(?i)out of memory"),
    "oob_write": Fault(LAUNCH, "out_of_bounds", (LAUNCH, "wrote 2 bytes just after O")),
    "nan": Fault(PARITY, "."),
    "wrong": Fault(PARITY, "exceeds"),
    "race": Fault(LAUNCH, "data_race|uninitialised", (PARITY, ".")),
    "greedy": Fault(Status.RESOURCE_LIMIT, "shared memory"),
    "compile_error": Fault(Status.COMPILE_FAILED, "static assertion"),
    "compile_hang": Fault(Status.COMPILE_FAILED, "the compiler was lost: not finished after"),
    "compile_crash": Fault(
        Status.COMPILE_FAILED,
        "the compiler was lost: killed its worker twice: SIGSEGV",
        outside=("compile worker", signal.SIGSEGV, 2),
    ),
    "killed": Fault(Status.CRASHED, "killed its worker twice: SIGKILL", outside=("device worker", signal.SIGKILL, 2)),
    "killed_once": Fault(Status.OK, "^$", outside=("device worker", signal.SIGKILL, 1)),
    "stalled": Fault(Status.TIMEOUT, "not finished after", outside=("device worker", signal.SIGSTOP, 1)),
}
"""Faults by value of the tunable FAULT."""


@dataclass(frozen=True)
class Plan:
    """Candidates and settings of a search."""

    counts: Mapping[str, int]
    """Number of configs by kind of :data:`FAULTS`, including the good kind."""
    device: str = "emulator"
    problem: str = "1x1x16x8"
    compile_limit_s: float = 30.0
    """Longer than any regular compilation; the endless one is aborted after this time."""
    workers: int = 2
    first: int | None = None
    """Limit on the number of candidates."""

    @property
    def budget(self) -> int:
        return sum(self.counts.values()) if self.first is None else self.first

    def configs(self, kind: str) -> Iterator[Config]:
        for serial in range(self.counts.get(kind, 0)):
            hundreds, rest = divmod(serial, 100)
            yield Config.of("faulty", {"FAULT": kind, "HUNDREDS": hundreds, "SERIAL": rest})


@dataclass(frozen=True)
class Run:
    """Results of one search."""

    code: int
    output: Mapping[str, Any]
    """Its printed JSON; empty if there was none."""
    errors: str
    wall_s: float
    rows: Mapping[Config, Evaluation]
    signals: Mapping[str, int] = field(default_factory=dict)
    """Number of sent signals by kind."""


def full_counts(device: str) -> dict[str, int]:
    """Counts of ``scripts/measure/fault_injection.py``: 500 candidates, 200 of them faulty.

    On the emulator no driver can hang, and its time limit is long; one more NaN candidate replaces the stalled one.
    """
    counts = {
        GOOD: 300,
        **dict.fromkeys(("oob_write", "nan", "wrong"), 30),
        "race": 24,
        "launch": 20,
        **dict.fromkeys(("illegal", "misaligned", "trap"), 12),
        "hang": 8,
        **dict.fromkeys(("memory", "greedy"), 6),
        "compile_error": 5,
        **dict.fromkeys(("compile_crash", "compile_hang", "killed", "killed_once", "stalled"), 1),
    }
    if device == "emulator":
        counts["nan"] += counts.pop("stalled")
    return counts


def write_data(folder: Path, counts: Mapping[str, int]) -> Path:
    """Makes a data folder with the family ``faulty`` and `counts` configs of each kind."""
    here, templates, spaces = Path(__file__).parent / "faulty", folder / "templates", folder / "search_spaces"
    shutil.copytree(ROOT / "templates" / "partials", templates / "partials")
    shutil.copytree(here, templates / "faulty")
    limits = " else ".join(f"{count} if FAULT == '{kind}'" for kind, count in counts.items())
    most = max(counts.values())
    spaces.mkdir()
    (spaces / "faulty.toml").write_text(f"""family = "faulty"
doc = "Faulty candidates, a fixed number of each kind."
[tunables.FAULT]
kind = "categorical"
values = {json.dumps(list(FAULTS))}
unit = "fault"
doc = "kind of fault"
[tunables.SERIAL]
kind = "ordinal"
values = {list(range(min(100, most)))}
unit = "number"
doc = "serial number modulo 100"
[tunables.HUNDREDS]
kind = "ordinal"
values = {list(range((most + 99) // 100))}
unit = "hundreds"
doc = "hundreds of the serial number, which exceeds the number of values of one tunable"
[derived.WARPS]
expr = "2 if SERIAL % 3 == 0 else 4 if SERIAL % 3 == 1 else 8"
unit = "warps"
doc = "warps that share a row"
[constraints.count]
rule = "100 * HUNDREDS + SERIAL < ({limits} else 0)"
reason = "number of candidates of this kind"
""")
    return folder


def search(
    folder: Path,
    plan: Plan,
    database: Path,
    *,
    cache: Path,
    meanwhile: Callable[[int], object] | None = None,
    under: Sequence[str] = (),
    warm: WarmPython | None = None,
) -> Run:
    """Runs or resumes the search of a plan.

    Args:
        folder: Parent of the data folder, which is made if missing.
        plan: Candidates and settings.
        database: Leaderboard file.
        cache: Folder of the compile cache.
        meanwhile: Function called in a thread with the search's process id, to interfere.
        under: Command prefix that runs the search.
        warm: Starts the search without its imports, unless it has a prefix.
    """
    data = folder / "data"
    if not data.exists():
        write_data(data, plan.counts)
    options = [
        *("--problem", plan.problem, "--device", plan.device, "--family", "faulty", "--strategy", "random"),
        *("--budget", str(plan.budget), "--inputs-seed", str(SEED), "--workers", str(plan.workers)),
        *("--compile-limit", str(plan.compile_limit_s), "--db", str(database), "--json", "--quiet"),
        *("--no-sanitizer", "--no-energy", "--no-log"),  # unrelated to faults; save seconds per champion
        "--no-racing",  # racing depends on earlier times, hence on the faults
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "EVOENGINE_DATA": str(data), "XDG_CACHE_HOME": str(cache)}
    start_s = time.monotonic()
    pid, finish = _start(["search", *options], environment, under, warm)
    with SignalSender(pid, plan) as sender:
        intruder = threading.Thread(target=meanwhile or (lambda _: None), args=(pid,), daemon=True)
        intruder.start()
        done = finish()
        wall_s = time.monotonic() - start_s
        intruder.join(60)
    document = json.loads(done.out) if done.out.strip() else {}
    return Run(done.code, document, done.err, wall_s, rows_of(database), sender.sent)


def _start(
    words: Sequence[str], environment: Mapping[str, str], under: Sequence[str], warm: WarmPython | None
) -> tuple[int, Callable[[], Done]]:
    """Starts a call; returns its process id and a function that waits for its end."""
    if warm is not None and not under:
        started = warm.start("evoengine", words, Path.cwd(), environment)
        return started.pid, started.finish
    process = subprocess.Popen(
        [*under, sys.executable, "-m", "evoengine", *words],
        env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def finish() -> Done:
        output, errors = process.communicate()
        return Done(process.returncode, output, errors)

    return process.pid, finish


def rows_of(database: Path) -> dict[Config, Evaluation]:
    """All evaluations of a leaderboard; empty if the file does not exist."""
    if not database.exists():
        return {}
    with Leaderboard(f"sqlite:///{database}", create=False) as board:
        return {
            entry.evaluation.config: entry.evaluation for study in board.studies() for entry in board.evaluations(study)
        }


class SignalSender:
    """Sends signals to workers that run marked candidates; a context manager."""

    def __init__(self, search_pid: int, plan: Plan) -> None:
        self._search_pid = search_pid
        self._marked = {
            config.key[:_TITLE_BYTES]: (kind, fault.outside)
            for kind, fault in FAULTS.items()
            for config in plan.configs(kind)
            if fault.outside is not None
        }
        self._hit: dict[str, set[int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def sent(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for tag, pids in self._hit.items():
            kind = self._marked[tag][0]
            counts[kind] = counts.get(kind, 0) + len(pids)
        return counts

    def __enter__(self) -> Self:
        if self._marked:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._marked:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            for pool, worker in workers_of(self._search_pid):
                self._signal_if_marked(pool, worker)

    def _signal_if_marked(self, pool: str, worker: int) -> None:
        tag = _title(worker)
        kind, (wanted, number, times) = self._marked.get(tag, ("", ("", signal.SIGKILL, 0)))
        hit = self._hit.setdefault(tag, set()) if kind else set()
        if kind and pool == wanted and worker not in hit and len(hit) < times:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)
                hit.add(worker)


def workers_of(search_pid: int) -> Iterator[tuple[str, int]]:
    """Yields the pool's title and the process id of every worker of a search."""
    for fork_server in _children(search_pid):
        for worker in _children(fork_server):
            yield _title(fork_server), worker


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _exists(pid: int) -> bool:
    """Whether a process exists. For one that ends meanwhile, the look may fail with ESRCH, which pathlib raises."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").exists()
    return False


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def hold_lock(database: Path, search_pid: int, *, after_rows: int, seconds: float) -> None:
    """Locks a leaderboard for `seconds` once it has `after_rows` rows."""
    while _count_rows(database) < after_rows:
        if not _exists(search_pid):
            return
        time.sleep(0.02)
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        other.execute("ROLLBACK")


def kill_device_workers(search_pid: int) -> None:
    """Kills every device worker as long as the search runs."""
    while _exists(search_pid):
        for pool, worker in workers_of(search_pid):
            if pool == "device worker":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        time.sleep(_POLL_S)


def with_breakable_device(folder: Path) -> list[str]:
    """Command prefix under which :func:`break_device` can break device 1."""
    return [sys.executable, str(Path(__file__).with_name("broken_device.py")), str(folder)]


def break_device(folder: Path, database: Path, search_pid: int, *, after_rows: int) -> None:
    """Marks device 1 as broken and kills its worker, once a leaderboard has `after_rows` rows."""
    while _count_rows(database) < after_rows or not (folder / "pid").exists():
        if not _exists(search_pid):
            return
        time.sleep(0.02)
    (folder / "broken").touch()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def _count_rows(database: Path) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM evo_evaluations").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


# -- expected results -------------------------------------------------------------------------------------------------


def mistakes(plan: Plan, run: Run) -> list[str]:
    """Candidates whose row is missing or has an unexpected status or reason."""
    wrong = []
    for kind in plan.counts:
        status, reason = FAULTS[kind].expected(plan.device)
        for config in plan.configs(kind):
            row = run.rows.get(config)
            if row is None:
                wrong.append(f"{config}: no row")
            elif row.status is not status or not re.search(reason, row.reason):
                wrong.append(f"{config}: {row.status.value}: {row.reason}, not {status.value}: {reason}")
    if len(run.rows) != plan.budget:
        wrong.append(f"{len(run.rows)} rows of {plan.budget} candidates")
    return wrong


def good_rows(plan: Plan, run: Run) -> dict[Config, Evaluation]:
    """Rows of the candidates with expected status OK."""
    kinds = [kind for kind in plan.counts if FAULTS[kind].status is Status.OK]
    return {config: run.rows[config] for kind in kinds for config in plan.configs(kind) if config in run.rows}


def verdict_facts(evaluation: Evaluation) -> tuple[object, ...]:
    """Verdict values that must agree between searches on the same inputs; the number of re-checks may differ."""
    verdict = evaluation.verdict
    if verdict is None:
        return (evaluation.status,)
    return evaluation.status, verdict.passed, verdict.max_error, verdict.tolerance, verdict.relative_l2, verdict.reason
