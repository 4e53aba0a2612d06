"""A comparison ends with one row per kernel, whatever a library does; all on CPU tensors."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from evoengine.bench.compare_job import OURS, CompareJob, Limits, OwnKernel
from evoengine.bench.compare_result import Finding, PeerStatus
from evoengine.bench.compare_run import CompareProgress, measure
from evoengine.bench.peer_protocol import Peer
from evoengine.bench.peer_registry import select_peers
from evoengine.bench.timer import plan_for
from evoengine.device.workers.pool import HeadStart
from evoengine.model import Problem
from evoengine.parity.inputs.cases import problem_case
from tests.bench import hostile_peers as hostile
from tests.bench.hostile_peers import Check, CpuPlatform, Hostile, Tuned

pytest.importorskip("torch")

SAMPLES = 6
LONG = Limits(start_s=300.0, prepare_s=300.0, check_s=300.0, sample_s=300.0)
"""Nothing here takes so long, however slow the machine."""
HEALTHY = ("sdpa", "sdpa-math", "chatter", "settings", "tuned")
PEERS: tuple[Peer, ...] = (
    *select_peers("sdpa,sdpa-math,sdpa-cudnn"),
    Hostile("raises", hostile.raise_error),
    Hostile("raises-late", at_call=hostile.raise_error),
    Hostile("exits", hostile.exit_at_once),
    Hostile("exits-at-import", hostile.exit_at_import),
    Hostile("aborts", hostile.abort_with_reason),
    Hostile("aborts-late", at_call=hostile.abort_with_reason),
    Hostile("allocates", hostile.allocate_wildly),
    Hostile("killed", hostile.be_killed),
    Hostile("chatter", hostile.chatter, hostile.chatter),
    Hostile("wrong", factor=hostile.wrong),
    Hostile("wrong-beside", factor=hostile.wrong_beside),
    Hostile("faults-beside", at_call=hostile.fault_beside),
    Hostile("aborts-beside", hostile.abort_beside),
    Hostile("aborts-sampled", at_call=hostile.abort_in_samples),
    Hostile("settings", note=hostile.process_settings),
    Tuned("tuned"),
)


@dataclass
class Outcome:
    """Rows, output and announcements of a comparison."""

    rows: dict[str, Finding] = field(default_factory=dict)
    printed: str = ""
    announced: list[str] = field(default_factory=list)
    output: dict[str, str] = field(default_factory=dict)


def compared(
    peers: tuple[Peer, ...], ours: OwnKernel, limits: Limits, folder: Path, start: HeadStart | None = None
) -> Outcome:
    problem = Problem(1, 2, 24, 16)
    case = problem_case(problem, 3)
    plan = replace(plan_for(problem), samples=SAMPLES, spin_up_s=0.0)
    job = CompareJob(case.inputs, ours, peers, Check(case), plan, CpuPlatform(), limits)
    outcome = Outcome()
    progress = CompareProgress(outcome.announced.append, outcome.output.__setitem__)
    with printed_to(folder / "printed"):
        found = measure(job, progress, start)
    outcome.rows = {finding.name: finding for finding in found}
    outcome.printed = (folder / "printed").read_text()
    assert [finding.name for finding in found] == [OURS, *(peer.name for peer in peers)]
    return outcome


@contextmanager
def printed_to(path: Path) -> Iterator[None]:
    """Sends what this process and its children print to a file."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    with path.open("wb") as file:
        for number, _ in kept:
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return compared(PEERS, OwnKernel(None, "no kernel"), LONG, tmp_path_factory.mktemp("compared"))


@pytest.mark.parametrize("name", HEALTHY)
def test_kernels_that_work_are_timed(outcome: Outcome, name: str) -> None:
    row = outcome.rows[name]
    assert row.outcome is PeerStatus.OK, row
    assert len(row.samples_us) == SAMPLES
    assert row.host_us is not None
    assert row.max_error is not None
    assert row.prepare_s > 0


def test_all_samples_come_from_one_process(outcome: Outcome) -> None:
    samples = {sample for row in outcome.rows.values() for sample in row.samples_us}
    assert len(samples) == 1
    assert samples != {float(os.getpid())}


def test_kernels_that_do_not_take_the_problem_are_unavailable(outcome: Outcome) -> None:
    assert outcome.rows["sdpa-cudnn"].outcome is PeerStatus.UNAVAILABLE
    assert outcome.rows[OURS].outcome is PeerStatus.UNAVAILABLE
    assert outcome.rows[OURS].note == "no kernel"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "KeyError: 'a wheel"),
        ("raises-late", "KeyError: 'a wheel"),
        ("exits", "exit code 3"),
        ("exits-at-import", "SystemExit: 3"),
        ("aborts", "SIGABRT; its last output: *** assertion of a driver failed ***"),
        ("aborts-late", "SIGABRT"),
        ("allocates", "MemoryError"),
        ("killed", "SIGKILL"),
    ],
)
def test_a_kernel_that_fails_alone_is_a_row_with_its_reason(outcome: Outcome, name: str, says: str) -> None:
    row = outcome.rows[name]
    assert row.outcome is PeerStatus.FAILED
    assert says in row.note
    assert "\n" not in row.note
    assert "beside" not in row.note
    assert row.samples_us == ()


@pytest.mark.parametrize(
    ("name", "says"),
    [("faults-beside", "illegal memory access"), ("aborts-beside", "SIGABRT"), ("aborts-sampled", "SIGABRT")],
)
def test_a_kernel_that_fails_beside_others_is_dropped(outcome: Outcome, name: str, says: str) -> None:
    row = outcome.rows[name]
    assert row.outcome is PeerStatus.FAILED
    assert says in row.note
    assert "beside" in row.note
    assert row.samples_us == ()
    assert sum(name in text for text in outcome.announced) == 2
    assert outcome.announced.count("timing") == 4


def test_a_reason_is_one_short_line(outcome: Outcome) -> None:
    assert "TORCH_USE_CUDA_DSA" not in outcome.rows["faults-beside"].note
    assert all("\n" not in row.note for row in outcome.rows.values())


def test_wrong_outputs_are_found_alone_and_beside_others(outcome: Outcome) -> None:
    alone, beside = outcome.rows["wrong"], outcome.rows["wrong-beside"]
    for row in (alone, beside):
        assert row.outcome is PeerStatus.WRONG
        assert "exceeds" in row.note
        assert len(row.samples_us) == SAMPLES
    assert "beside the others only" in beside.note
    assert "beside" not in alone.note


def test_nothing_that_libraries_print_reaches_the_terminal(outcome: Outcome) -> None:
    assert outcome.printed == ""
    for words in ("AUTOTUNE flex", "by a compiler", "by a child"):
        assert words in outcome.output["chatter"]


def test_a_tuned_kernel_is_tuned_once(outcome: Outcome) -> None:
    assert outcome.rows["tuned"].note == "best of 9"


def test_processes_share_caches_and_end_first_when_memory_is_short(outcome: Outcome) -> None:
    score, cache = outcome.rows["settings"].note.split(" ", 1)
    usual = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")  # noqa: PTH118
    assert cache == os.environ.get("TORCHINDUCTOR_CACHE_DIR", usual)
    assert score == "1000"


def test_a_user_without_a_name_has_the_id_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found: 54321")

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    ours, start = OwnKernel(hostile.refuse_with_settings, "row 7"), HeadStart("compare", ())  # torch is not needed
    note = compared((), ours, LONG, tmp_path, start).rows[OURS].note
    assert note.endswith(os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}"))  # noqa: PTH118


def test_a_kernel_that_hangs_is_a_row_and_so_is_ours_that_crashes(tmp_path: Path) -> None:
    short = replace(LONG, prepare_s=0.8, sample_s=0.8)
    peers = (Hostile("hangs", hostile.sleep_long), Hostile("stalls", at_call=hostile.sleep_in_samples))
    outcome = compared(peers, OwnKernel(hostile.abort_when_loaded, "row 7"), short, tmp_path)
    assert {row.outcome for row in outcome.rows.values()} == {PeerStatus.FAILED}
    assert "SIGABRT" in outcome.rows[OURS].note
    assert outcome.rows[OURS].ours
    assert "no answer within 0.8 s" in outcome.rows["hangs"].note
    assert "no answer within 0.8 s" in outcome.rows["stalls"].note
    assert "beside 0 others" in outcome.rows["stalls"].note
