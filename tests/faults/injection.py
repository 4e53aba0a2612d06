"""A search among candidates that are broken on purpose, through the command line, and what must come out of it.

The family ``faulty`` (beside this file) computes attention, or does what its tunable FAULT says. A space of exactly as
many configs as are wanted of each kind is searched until it is exhausted. Some kinds are ruined from outside: workers
that name such a candidate in their process title get a signal.
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

ROOT: Final = Path(__file__).resolve().parents[2]
GOOD: Final = "none"
SEED: Final = 20260
"""Of the inputs: two searches judge a candidate on the same ones."""

_TITLE_BYTES: Final = 15
_POLL_S: Final = 0.001


@dataclass(frozen=True)
class Fault:
    """One way to fail, and what must be recorded of it."""

    status: Status
    reason: str
    """Pattern that the reason must match."""
    on_gpu: tuple[Status, str] | None = None
    """The same on a GPU, where it is told in another way."""
    outside: tuple[str, signal.Signals, int] | None = None
    """Workers of this pool that work on it get a signal, so many times."""

    def expected(self, device: str) -> tuple[Status, str]:
        """Status, and pattern of the reason."""
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
"""By value of the tunable FAULT."""


@dataclass(frozen=True)
class Plan:
    """What is searched."""

    counts: Mapping[str, int]
    """Configs of each kind; kinds of :data:`FAULTS`, the good one included."""
    device: str = "emulator"
    problem: str = "1x1x16x8"
    compile_limit_s: float = 30.0
    """An honest compilation takes less on any machine; the endless one is given up then."""
    workers: int = 2
    first: int | None = None
    """Only so many of them."""

    @property
    def budget(self) -> int:
        """Candidates to evaluate."""
        return sum(self.counts.values()) if self.first is None else self.first

    def configs(self, kind: str) -> Iterator[Config]:
        """The configs of one kind."""
        for serial in range(self.counts.get(kind, 0)):
            hundreds, rest = divmod(serial, 100)
            yield Config.of("faulty", {"FAULT": kind, "HUNDREDS": hundreds, "SERIAL": rest})


@dataclass(frozen=True)
class Run:
    """What one search left behind."""

    code: int
    said: Mapping[str, Any]
    """What it printed, as JSON; empty where it printed none."""
    errors: str
    wall_s: float
    rows: Mapping[Config, Evaluation]
    signals: Mapping[str, int] = field(default_factory=dict)
    """Signals that were sent, by kind."""


def full_counts(device: str) -> dict[str, int]:
    """500 candidates, 200 of them faulty: what ``scripts/measure/fault_injection.py`` searches.

    On the emulator no driver can stop answering, and the net for that is a wide one there: one NaN more is searched.
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
    """Makes a data folder that holds the family ``faulty`` with so many configs of each kind."""
    here, templates, spaces = Path(__file__).parent / "faulty", folder / "templates", folder / "search_spaces"
    shutil.copytree(ROOT / "templates" / "partials", templates / "partials")
    shutil.copytree(here, templates / "faulty")
    limits = " else ".join(f"{count} if FAULT == '{kind}'" for kind, count in counts.items())
    most = max(counts.values())
    spaces.mkdir()
    (spaces / "faulty.toml").write_text(f"""family = "faulty"
doc = "Kinds of faults, and so many candidates of each."
[tunables.FAULT]
kind = "categorical"
values = {json.dumps(list(FAULTS))}
unit = "fault"
doc = "what is wrong"
[tunables.SERIAL]
kind = "ordinal"
values = {list(range(min(100, most)))}
unit = "number"
doc = "tells candidates of one kind apart"
[tunables.HUNDREDS]
kind = "ordinal"
values = {list(range((most + 99) // 100))}
unit = "hundreds"
doc = "of the serial number: a tunable has no room for all of it"
[derived.WARPS]
expr = "2 if SERIAL % 3 == 0 else 4 if SERIAL % 3 == 1 else 8"
unit = "warps"
doc = "warps that share a row"
[constraints.count]
rule = "100 * HUNDREDS + SERIAL < ({limits} else 0)"
reason = "so many are wanted of this kind"
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
) -> Run:
    """Runs the search of a plan, or goes on with it.

    Args:
        folder: where the data folder is made, if it is not there.
        plan: what is searched.
        database: the leaderboard.
        cache: of compilations.
        meanwhile: called with the search's process id in a thread, to get in the way.
        under: a command that runs the command that follows it.
    """
    data = folder / "data"
    if not data.exists():
        write_data(data, plan.counts)
    options = [
        *("--problem", plan.problem, "--device", plan.device, "--family", "faulty", "--strategy", "random"),
        *("--budget", str(plan.budget), "--inputs-seed", str(SEED), "--workers", str(plan.workers)),
        *("--compile-limit", str(plan.compile_limit_s), "--db", str(database), "--json", "--quiet"),
        *("--no-sanitizer", "--no-energy", "--no-log"),  # seconds a champion, and about no fault
        "--no-racing",  # whom a race drops depends on who was timed before, so on the faults: no verdict of the gate
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "EVOENGINE_DATA": str(data), "XDG_CACHE_HOME": str(cache)}
    start_s = time.monotonic()
    with subprocess.Popen(
        [*under, sys.executable, "-m", "evoengine", "search", *options],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process, Meddler(process.pid, plan) as meddler:  # fmt: skip
        intruder = threading.Thread(target=meanwhile or (lambda _: None), args=(process.pid,), daemon=True)
        intruder.start()
        said, errors = process.communicate()
        wall_s = time.monotonic() - start_s
        intruder.join(60)
    document = json.loads(said) if said.strip() else {}
    return Run(process.returncode, document, errors, wall_s, rows_of(database), meddler.sent)


def rows_of(database: Path) -> dict[Config, Evaluation]:
    """Everything that a leaderboard holds; nothing where there is none."""
    if not database.exists():
        return {}
    with Leaderboard(f"sqlite:///{database}", create=False) as board:
        return {
            entry.evaluation.config: entry.evaluation for study in board.studies() for entry in board.evaluations(study)
        }


class Meddler:
    """Somebody outside who sends signals to workers, by what they work on; use it in a ``with`` block."""

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
        """Signals sent so far, by kind."""
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
                self._look_at(pool, worker)

    def _look_at(self, pool: str, worker: int) -> None:
        tag = _title(worker)
        kind, (wanted, number, times) = self._marked.get(tag, ("", ("", signal.SIGKILL, 0)))
        hit = self._hit.setdefault(tag, set()) if kind else set()
        if kind and pool == wanted and worker not in hit and len(hit) < times:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)
                hit.add(worker)


def workers_of(search_pid: int) -> Iterator[tuple[str, int]]:
    """The worker processes of a search: the pool's title, and the process id."""
    for nursery in _children(search_pid):
        for worker in _children(nursery):
            yield _title(nursery), worker


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def hold_lock(database: Path, search_pid: int, *, after_rows: int, seconds: float) -> None:
    """Keeps a leaderboard locked for a while, once it holds so many rows."""
    while _count_rows(database) < after_rows:
        if not Path(f"/proc/{search_pid}").exists():
            return
        time.sleep(0.02)
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        other.execute("ROLLBACK")


def besiege(search_pid: int) -> None:
    """Kills every process that is to work on the device, as long as the search runs."""
    while Path(f"/proc/{search_pid}/task/{search_pid}/children").exists():
        for pool, worker in workers_of(search_pid):
            if pool == "device worker":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        time.sleep(_POLL_S)


def with_breakable_device(folder: Path) -> list[str]:
    """What runs a command so that :func:`break_device` can break device 1 of its workers."""
    return [sys.executable, str(Path(__file__).with_name("broken_device.py")), str(folder)]


def break_device(folder: Path, database: Path, search_pid: int, *, after_rows: int) -> None:
    """Breaks device 1 beyond recovery, and kills what runs on it, once a leaderboard holds so many rows."""
    while _count_rows(database) < after_rows or not (folder / "pid").exists():
        if not Path(f"/proc/{search_pid}").exists():
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


# -- what must come out -----------------------------------------------------------------------------------------------


def mistakes(plan: Plan, run: Run) -> list[str]:
    """Every candidate whose row is missing, or is not what its fault demands."""
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
    """The rows of the candidates without a fault of their own."""
    kinds = [kind for kind in plan.counts if FAULTS[kind].status is Status.OK]
    return {config: run.rows[config] for kind in kinds for config in plan.configs(kind) if config in run.rows}


def verdict_facts(evaluation: Evaluation) -> tuple[object, ...]:
    """What two searches on the same inputs must agree on; how often a candidate was checked again may differ."""
    verdict = evaluation.verdict
    if verdict is None:
        return (evaluation.status,)
    return evaluation.status, verdict.passed, verdict.max_error, verdict.tolerance, verdict.relative_l2, verdict.reason
