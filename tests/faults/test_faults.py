"""Faults of every kind among good candidates: each gets its status, and good candidates are not affected.

``scripts/measure/fault_injection.py`` runs the full numbers, 200 faults among 500 candidates.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from evoengine.engine.devices.gpus import find_gpus
from evoengine.model import Config, Evaluation, Problem, Status
from evoengine.space.loader import load_space
from evoengine.target import get_target
from tests.faults.disk import SmallDisk
from tests.faults.injection import (
    FAULTS,
    GOOD,
    Plan,
    Run,
    break_device,
    full_counts,
    good_rows,
    hold_lock,
    kill_device_workers,
    mistakes,
    search,
    verdict_facts,
    with_breakable_device,
    write_data,
)
from tests.made_once import made_once
from tests.warm import WarmPython

COUNTS = {**{kind: 1 for kind in FAULTS if kind != "stalled"}, GOOD: 2}
"""Eighteen candidates. The pool's own tests cover a stalled worker, whose time limit is long here."""
SHORT_LIMIT_S = 5.0
"""Time limit of compilations: a regular one takes a tenth of a second, and the endless one computes all the time."""


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    """Cache of all searches, which have most kernels in common."""
    return shared_cache


TWO = Plan({GOOD: COUNTS[GOOD]})


@dataclass(frozen=True)
class LostDevice:
    """A search whose device workers were killed as long as it ran, and the same search resumed without that."""

    cut_short: Run
    whole: Run


@pytest.fixture(scope="module")
def lost_device(cache: Path, warm: WarmPython) -> LostDevice:
    """The searches of :data:`TWO`, which run once for all processes."""

    def make(folder: Path) -> None:
        database = folder / "board.db"
        cut_short = search(folder, TWO, database, cache=cache, warm=warm, meanwhile=kill_device_workers)
        whole = search(folder, TWO, database, cache=cache, warm=warm)
        (folder / "runs.pickle").write_bytes(pickle.dumps((cut_short, whole)))

    made = made_once(cache.parent / "lost-device", make) / "runs.pickle"
    return LostDevice(*pickle.loads(made.read_bytes()))


@pytest.mark.parametrize("device", ["cuda", "emulator"])
def test_the_space_of_the_whole_experiment_holds_its_500_candidates(tmp_path: Path, device: str) -> None:
    plan = Plan(full_counts(device), device)
    write_data(tmp_path, plan.counts)
    valid = load_space(tmp_path / "search_spaces" / "faulty.toml").build(Problem(1, 1, 16, 8), get_target("h200"))
    wanted = {config for kind in plan.counts for config in plan.configs(kind)}
    assert {valid.config(index) for index in range(valid.size)} == wanted
    assert (len(wanted), plan.counts[GOOD]) == (500, 300)


def folder_of(base: Path, name: str) -> Path:
    folder = base / name
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_every_fault_gets_its_status_and_good_candidates_are_unaffected(
    tmp_path: Path, cache: Path, warm: WarmPython, lost_device: LostDevice
) -> None:
    """They are compared with the candidates of a search that was resumed after the loss of its device."""
    faulty = Plan(COUNTS, compile_limit_s=SHORT_LIMIT_S)
    database = tmp_path / "faulty.db"
    lock = partial(hold_lock, database, after_rows=8, seconds=2.0)
    run = search(folder_of(tmp_path, "faulty"), faulty, database, cache=cache, warm=warm, meanwhile=lock)
    assert (run.code, run.errors) == (0, "")
    assert mistakes(faulty, run) == []
    assert run.signals == {"compile_crash": 2, "killed": 2, "killed_once": 1}
    assert mistakes(TWO, lost_device.whole) == []
    assert same_as(lost_device.whole, good_rows(TWO, run))


def same_as(undisturbed: Run, rows: dict[Config, Evaluation]) -> bool:
    """Whether rows have the same verdicts and predictions as without faults."""
    assert len({row.timing.median_us for row in rows.values() if row.timing is not None}) > 1
    for config, row in rows.items():
        alone = undisturbed.rows[config]
        assert verdict_facts(row) == verdict_facts(alone), config
        assert row.timing == alone.timing, config
    return rows.keys() == undisturbed.rows.keys()


@pytest.mark.gpu
@pytest.mark.slow
def test_every_fault_gets_its_status_on_a_gpu(tmp_path: Path, cache: Path, warm: WarmPython) -> None:
    plan = Plan(COUNTS | {"stalled": 1}, device="cuda", problem="1x4x64x16")
    run = search(folder_of(tmp_path, "faulty"), plan, tmp_path / "faulty.db", cache=cache, warm=warm)
    assert run.code == 0, run.errors
    assert mistakes(plan, run) == []


FULL = Plan({GOOD: 7})
FREE_BYTES = 180_000
"""Enough for some of the rows."""


@pytest.mark.slow
def test_a_full_disk_ends_the_search_and_loses_nothing(tmp_path: Path, cache: Path, warm: WarmPython) -> None:
    """A file system of its own is full, or without the right to mount one, a limit on the size of files is reached."""
    folder = folder_of(tmp_path, "search")
    with SmallDisk(folder_of(tmp_path, "small")) as disk:
        database = disk.folder / "board.db"
        assert search(folder, replace(FULL, first=3), database, cache=cache, warm=warm).code == 0
        cut_short = search(folder, FULL, database, cache=cache, warm=warm, under=disk.shrink(FREE_BYTES))
        disk.grow()
        assert_nothing_lost(cut_short, search(folder, FULL, database, cache=cache, warm=warm), database)


def assert_nothing_lost(cut_short: Run, whole: Run, database: Path) -> None:
    """A full disk ends the search with one line; once there is space, the same command resumes it."""
    assert cut_short.code == 2
    assert cut_short.errors.startswith(f"error: {database}: ")
    assert cut_short.errors.count("\n") == 1
    assert 3 < len(cut_short.rows) < FULL.budget
    assert (whole.code, whole.errors) == (0, "")
    assert mistakes(FULL, whole) == []
    assert {config: whole.rows[config] for config in cut_short.rows} == cut_short.rows


@pytest.mark.slow
def test_a_lost_device_ends_the_search_without_blaming_a_candidate(lost_device: LostDevice) -> None:
    cut_short, whole = lost_device.cut_short, lost_device.whole
    assert cut_short.code == 3
    assert cut_short.errors.startswith("error: device worker ")
    assert "SIGKILL" in cut_short.errors
    assert cut_short.errors.count("\n") == 1
    assert all(row.status is Status.OK for row in cut_short.rows.values())
    assert (whole.code, whole.errors) == (0, "")
    assert mistakes(TWO, whole) == []


def assert_one_of_two_is_lost_and_the_search_goes_on(
    tmp_path: Path, cache: Path, warm: WarmPython, plan: Plan, label: str
) -> None:
    """One device breaks during the search: every candidate still gets its row."""
    folder, database = folder_of(tmp_path, "search"), tmp_path / "board.db"
    breaker = partial(break_device, tmp_path, database, after_rows=4)
    run = search(
        folder, plan, database, cache=cache, warm=warm, meanwhile=breaker, under=with_breakable_device(tmp_path)
    )
    assert (run.code, run.errors) == (0, "")
    assert mistakes(plan, run) == []
    (lost,) = run.output["lost"]
    assert lost.startswith(label)
    assert re.search(r"quarantined: device worker 1 .*\b4\b.*known-good .*\b8192\b", lost)
    assert (run.output["stop"], run.output["devices"]) == ("budget reached", 2)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_second_device_finishes_after_the_loss_of_one(tmp_path: Path, cache: Path, warm: WarmPython) -> None:
    plan = Plan({GOOD: 8}, device="emulator:0,1")
    assert_one_of_two_is_lost_and_the_search_goes_on(tmp_path, cache, warm, plan, "emulated device 1 ")


@pytest.mark.gpu
@pytest.mark.slow
def test_the_second_gpu_finishes_after_the_loss_of_one(tmp_path: Path, cache: Path, warm: WarmPython) -> None:
    if len(find_gpus()) < 2:
        pytest.skip("needs two GPUs")
    plan = Plan({GOOD: 100}, device="cuda:0,1", problem="1x4x64x16")
    assert_one_of_two_is_lost_and_the_search_goes_on(tmp_path, cache, warm, plan, "GPU 1 (")
