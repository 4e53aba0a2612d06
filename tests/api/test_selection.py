"""Selection of kernels: the champion, else the nearest valid elite, else none; and lockfiles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evoengine.api.lockfile import lock_text, read_lockfile
from evoengine.api.rows import best_rows
from evoengine.api.selection import NoSelection, Selection, Selector, by_distance, distance
from evoengine.api.selection_cache import SelectionCache, rounded
from evoengine.api.sources import KernelSource, find_source
from evoengine.errors import LockMismatchError, StoreError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.model import DType, Problem
from evoengine.runtime.call import Call, CallStrides, Options, call_strides, read_call
from evoengine.runtime.first_use_check import is_checked_whole
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space, parse_space
from evoengine.target import get_target
from tests.api.boards import GPU, H200, MISSION, Entry, mma, store, wgmma

FAST, OTHER = mma(), mma({"BLOCK_N": 16})
CAUSAL = replace(MISSION, causal=True)


@pytest.fixture(scope="module")
def cache() -> Path:
    return default_cache_dir()


@pytest.fixture
def rows_of(tmp_path: Path, cache: Path) -> Callable[..., list[Any]]:
    """``rows_of(Entry(…), …)`` returns the rows of a leaderboard with these entries."""

    def rows_of(*entries: Entry) -> list[Any]:
        store(tmp_path / "board.db", cache, *entries)
        return KernelSource(tmp_path / "board.db", locked=False).rows(GPU)

    return rows_of


def chosen(found: Selection | NoSelection) -> Selection:
    assert isinstance(found, Selection), found
    return found


def test_champion_is_selected_for_its_problem(rows_of: Callable[..., list[Any]]) -> None:
    rows = rows_of(Entry(MISSION, OTHER, 6.0, crowned=False), Entry(MISSION, FAST), Entry(CAUSAL, OTHER))
    found = chosen(Selector(GPU, H200, rows).select(MISSION))
    assert found.exact
    assert found.row.champion
    assert found.row.problem == MISSION
    assert found.kernel.source.config == FAST
    assert (found.kernel.source.source_hash, found.kernel.binary.code_hash) == (
        found.row.source_hash,
        found.row.code_hash,
    )


def test_elites_and_champions_are_checked(rows_of: Callable[..., list[Any]]) -> None:
    tried: list[Problem] = []

    def trial(selection: Selection) -> str:
        tried.append(selection.row.problem)
        return ""

    selector = Selector(GPU, H200, rows_of(Entry(MISSION, FAST)))
    assert chosen(selector.select(MISSION, trial=trial)).exact
    assert tried == [MISSION]
    causal = chosen(selector.select(CAUSAL, trial=trial))
    assert not causal.exact
    assert tried == [MISSION, MISSION]
    assert "CAUSAL = true" in causal.kernel.source.text


def test_nearest_problem_whose_kernel_passes_the_check(rows_of: Callable[..., list[Any]]) -> None:
    near, far = replace(MISSION, seq_q=256, seq_kv=256), replace(MISSION, batch=16, seq_q=4096, seq_kv=4096)
    rows = rows_of(Entry(far, FAST), Entry(near, OTHER))
    asked = replace(MISSION, seq_q=300, seq_kv=300)
    assert chosen(Selector(GPU, H200, rows).select(asked)).row.problem == near
    selector = Selector(GPU, H200, rows)
    found = chosen(selector.select(asked, trial=lambda s: "off by one" if s.row.problem == near else ""))
    assert found.row.problem == far
    assert any("off by one" in note for note in found.notes)


def test_elites_that_violate_a_constraint_are_skipped(rows_of: Callable[..., list[Any]]) -> None:
    large, small = mma({"WARPS_M": 4, "WARPS_N": 1}), mma({"WARPS_M": 1, "WARPS_N": 1, "BLOCK_N": 16})
    rows = rows_of(Entry(MISSION, large), Entry(replace(MISSION, batch=8), small))
    found = chosen(Selector(GPU, H200, rows).select(replace(MISSION, seq_q=16, seq_kv=16)))
    assert found.kernel.source.config == small
    assert any("a query tile" in note or "tile" in note for note in found.notes)


def test_an_elite_is_changed_where_none_is_valid(rows_of: Callable[..., list[Any]]) -> None:
    wide = mma({"WARPS_M": 4, "WARPS_N": 1})
    asked, tried = replace(MISSION, seq_q=16, seq_kv=16), []

    def trial(selection: Selection) -> str:
        tried.append(selection.kernel.source.config)
        return ""

    selector = Selector(GPU, H200, rows_of(Entry(MISSION, wide)))
    assert isinstance(selector.select(asked, trial=trial), NoSelection)
    found = chosen(selector.select(asked, even_if_slower=True, trial=trial))
    config = found.kernel.source.config
    assert find_space("mma").check(wide.as_dict(), asked, H200)
    assert not find_space("mma").check(config.as_dict(), asked, H200)
    assert tried == [config]
    assert found.changed
    assert not found.exact
    assert config["STAGES_K"] == wide["STAGES_K"]  # what need not change stays
    assert f"WARPS_M {config['WARPS_M']} instead of 4" in found.notes[-1]


def test_kernels_slower_than_torch_need_even_if_slower(rows_of: Callable[..., list[Any]]) -> None:
    selector = Selector(GPU, H200, rows_of(Entry(MISSION, FAST, median_us=5.0, baseline_us=4.0)))
    refused = selector.select(MISSION)
    assert isinstance(refused, NoSelection)
    assert "slower than sdpa-cudnn" in refused.reasons[0]
    assert chosen(selector.select(MISSION, even_if_slower=True)).exact


def test_only_measured_rows_of_the_gpu_are_used(tmp_path: Path, cache: Path) -> None:
    entries = Entry(MISSION, FAST, predicted=True, baseline_us=None), Entry(MISSION, FAST, gpu="NVIDIA L4")
    store(tmp_path / "board.db", cache, *entries)
    rows = KernelSource(tmp_path / "board.db", locked=False).rows()
    assert [row.gpu for row in rows] == ["NVIDIA L4"]
    refused = Selector(GPU, H200, rows).select(MISSION)
    assert isinstance(refused, NoSelection)
    assert GPU in refused.reasons[0]


def test_unsupported_problem_has_a_reason(rows_of: Callable[..., list[Any]]) -> None:
    refused = Selector(GPU, H200, rows_of(Entry(MISSION, FAST))).select(Problem(1, 8, 512, 65))
    assert isinstance(refused, NoSelection)
    assert "head_dim" in refused.reasons[0]


def test_row_of_an_older_template_is_not_exact(rows_of: Callable[..., list[Any]]) -> None:
    old = [replace(row, source_hash="0" * 16, template_hash="1" * 16) for row in rows_of(Entry(MISSION, FAST))]
    assert not chosen(Selector(GPU, H200, old).select(MISSION)).exact
    refused = Selector(GPU, H200, old).select(MISSION, trial=lambda selection: "wrong")
    assert isinstance(refused, NoSelection)


def test_order_of_problem_distances() -> None:
    near = [
        MISSION,
        replace(MISSION, seq_q=500, seq_kv=500),
        replace(MISSION, seq_q=1024, seq_kv=1024),
        CAUSAL,
        replace(MISSION, head_dim=128),
    ]
    distances = [distance(MISSION, problem) for problem in near]
    assert distances == sorted(distances)
    assert distances[0] == 0
    assert len(set(distances)) == len(near)
    assert distance(near[1], near[2]) == distance(near[2], near[1])
    assert distance(MISSION, replace(MISSION, dtype=DType.BF16)) < distance(MISSION, CAUSAL)


# -- lengths that change from call to call ----------------------------------------------------------------------------


def test_calls_of_similar_size_share_a_selection(
    rows_of: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of(Entry(MISSION, FAST))
    tried: list[Call] = []
    monkeypatch.setattr("evoengine.api.selection_cache.gpu_of", lambda device: (GPU, H200))

    def fine(plan_for: object, call: Call, device: int, strides: CallStrides) -> str:
        tried.append(call)
        return ""

    monkeypatch.setattr("evoengine.api.selection_cache.check_kernel", fine)
    chooser, source = SelectionCache(), KernelSource(tmp_path / "board.db", locked=False)

    def choose(rows: int, keys: int, capacity: int = 0) -> Selection:
        shapes = (1, 8, rows, 64), (1, 8, max(keys, capacity), 64)
        q, k = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
        tensors = q, k[:, :, :keys], k[:, :, :keys]
        call = read_call(*tensors, None, None, None, Options())
        strides = call_strides(tensors, call, "bhsd")
        return chosen(chooser.choose(call, 0, source, strides, even_if_slower=False))

    assert choose(512, 512).exact
    assert len(tried) == 1
    for capacity in (600, 700):
        assert choose(512, 512, capacity).exact
        assert len(tried) == 2, "a prefix of a cache is another kind of strides, whatever its length"
    tried.clear()
    growing = [choose(40, 1000 + step) for step in range(40)]
    assert len(tried) == 1
    assert all(found is growing[0] for found in growing)
    assert not growing[0].exact
    near = choose(500, 500)  # rounds to the default problem, but differs from it
    assert not near.exact
    assert len(tried) == 2
    chooser.forget()
    choose(40, 1000)
    assert len(tried) == 3


@pytest.mark.parametrize("required_first", [False, True])
def test_selection_is_independent_of_fallback(
    rows_of: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required_first: bool
) -> None:
    slower_but_near = Entry(MISSION, FAST, median_us=5.0, baseline_us=4.0)
    rows_of(slower_but_near, Entry(replace(MISSION, seq_q=2048, seq_kv=2048), OTHER))
    monkeypatch.setattr("evoengine.api.selection_cache.gpu_of", lambda device: (GPU, H200))
    monkeypatch.setattr("evoengine.api.selection_cache.check_kernel", lambda *_, strides: "")
    chooser, source = SelectionCache(), KernelSource(tmp_path / "board.db", locked=False)

    def choose(rows: int, required: bool) -> Selection | NoSelection:
        q = torch.empty((1, 8, rows, 64), dtype=torch.float16, device="meta")
        call = read_call(q, q, q, None, None, None, Options())
        strides = call_strides((q, q, q), call, "bhsd")
        return chooser.choose(call, 0, source, strides, even_if_slower=required)

    found = [choose(640, required) for required in (required_first, not required_first)]
    assert [chosen(one).row.problem.seq_q for one in found] == [2048, 2048]
    assert isinstance(choose(512, False), NoSelection)
    assert chosen(choose(512, True)).row.problem == MISSION


def test_rounding_of_problems() -> None:
    for size in (1, 2, 3, 7, 100, 511, 512, 513, 4096, 10**6):
        once = rounded(Problem(size, 8, size, 64, seq_kv=3 * size))
        assert rounded(once) == once
        assert 0.7 < once.seq_q / size < 1.42
    packed = rounded(Problem(3, 8, 40, 64, lengths_q=(40, 1, 5), lengths_kv=(4, 100, 9), seq_kv=100))
    assert (packed.batch, set(packed.lengths_q), set(packed.lengths_kv)) == (3, {packed.seq_q}, {packed.seq_kv})


def test_sm_90a_kernels_are_selected_only_there(rows_of: Callable[..., list[Any]]) -> None:
    """An H200 compiles for ``sm_90a``; rows measured with code for ``sm_90`` remain usable."""
    old = replace(MISSION, batch=2)
    rows = rows_of(Entry(MISSION, wgmma(), arch="sm_90a"), Entry(old, FAST, arch="sm_90"))
    here = Selector(GPU, H200, rows)
    assert chosen(here.select(MISSION)).kernel.binary.arch == "sm_90a"
    assert chosen(here.select(old)).exact
    plain = chosen(Selector(GPU, H200.compiled_for("sm_90"), rows).select(MISSION))
    assert plain.row.problem == old
    assert any("wgmma" in note and "sm_90a" in note for note in plain.notes)
    for other in ("l4", "a100-80g"):
        assert isinstance(Selector(GPU, get_target(other), rows).select(MISSION), NoSelection)


def test_one_kernel_is_locked_per_gpu_and_problem(rows_of: Callable[..., list[Any]]) -> None:
    rows = rows_of(Entry(MISSION, FAST, 6.0, arch="sm_90"), Entry(MISSION, wgmma(), 5.0, arch="sm_90a"))
    assert [row.arch for row in best_rows(rows)] == ["sm_90a"]
    assert chosen(Selector(GPU, H200, rows).select(MISSION)).row.arch == "sm_90a"


# -- the lockfile -----------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(rows_of: Callable[..., list[Any]], tmp_path: Path) -> Path:
    path = tmp_path / "evoengine.lock"
    path.write_text(lock_text(rows_of(Entry(MISSION, FAST), Entry(CAUSAL, OTHER))))
    return path


def test_a_locked_kernel_is_checked_too(locked: Path) -> None:
    rows = KernelSource(locked, locked=True).rows(GPU)
    refused = Selector(GPU, H200, rows, locked=True).select(MISSION, trial=lambda _: "it is wrong")
    assert isinstance(refused, NoSelection)
    assert any("it is wrong" in reason for reason in refused.reasons)


@pytest.mark.parametrize("arch", ["90", "sm_90 -I/etc", "9.0"])
def test_an_architecture_that_nvrtc_does_not_know_is_refused_for_its_own_row_only(locked: Path, arch: str) -> None:
    first, other = KernelSource(locked, locked=True).rows(GPU)
    rows = [replace(first, arch=arch), other]
    with pytest.raises(LockMismatchError, match=r"gpu-architecture"):
        Selector(GPU, H200, rows, locked=True).select(first.problem)
    found = chosen(Selector(GPU, H200, rows).select(first.problem))
    assert found.row == other
    assert any("gpu-architecture" in note for note in found.notes)
    assert chosen(Selector(GPU, H200, rows, locked=True).select(other.problem)).exact


def test_a_lockfile_suffices_for_selection(locked: Path, tmp_path: Path) -> None:
    rows = KernelSource(locked, locked=True).rows(GPU)
    board = KernelSource(tmp_path / "board.db", locked=False).rows(GPU)
    assert sorted(rows, key=lambda row: row.row_id) == sorted(board, key=lambda row: row.row_id)
    (tmp_path / "board.db").unlink()
    found = chosen(Selector(GPU, H200, rows, locked=True).select(CAUSAL))
    assert found.exact
    assert found.kernel.source.config == OTHER


def test_custom_search_space_is_stored_in_leaderboard_and_lockfile(
    rows_of: Callable[..., list[Any]], tmp_path: Path
) -> None:
    shipped = (data_dir("search_spaces") / "scalar.toml").read_text()
    own = re.sub(r"(tunables\.UNROLL\]\nkind = .*\nvalues =) .*", r"\1 [3]", shipped)
    own = re.sub(r"UNROLL = \d", "UNROLL = 3", own)
    space = parse_space(own, "own.toml")
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    config = space.config(first | dict(space.starts[0].values))
    assert config.as_dict()["UNROLL"] == 3
    (row,) = rows_of(Entry(MISSION, config, space=own))
    path = tmp_path / "evoengine.lock"
    path.write_text(lock_text([row]))
    for rows, locked in (([row], False), (read_lockfile(path), True)):
        found = chosen(Selector(GPU, H200, rows, locked=locked).select(MISSION))
        assert found.exact
        assert found.kernel.source.config == config
    refused = Selector(GPU, H200, [replace(row, space="")]).select(MISSION)
    assert isinstance(refused, NoSelection), "the packaged space does not have the value"
    path.write_text(edited(path.read_text(), lambda d: d["kernels"][0].update(space=7), sign=True))
    with pytest.raises(StoreError, match=r"kernels\[0\]\.space: "):
        read_lockfile(path)


def test_a_stored_space_is_tried_on_every_shape_at_full_size(
    rows_of: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = (data_dir("search_spaces") / "mma.toml").read_text()
    rows_of(Entry(MISSION, FAST, space=packaged + "\n# own\n"))
    tried: list[tuple[int, bool]] = []
    wrong = {640: "its largest error is 1"}
    monkeypatch.setattr("evoengine.api.selection_cache.gpu_of", lambda device: (GPU, H200))

    def check(plan_for: object, call: Call, device: int, *, strides: CallStrides, full: bool = False) -> str:
        tried.append((call.seq_q, full or is_checked_whole(call)))
        return wrong.get(call.seq_q, "")

    monkeypatch.setattr("evoengine.api.selection_cache.check_kernel", check)
    chooser = SelectionCache()

    def choose(rows: int) -> Selection | NoSelection:
        q = torch.empty((1, 8, rows, 64), dtype=torch.float16, device="meta")
        call = read_call(q, q, q, None, None, None, Options())
        strides = call_strides((q, q, q), call, "bhsd")
        source = KernelSource(tmp_path / "board.db", locked=False)
        return chooser.choose(call, 0, source, strides, even_if_slower=False)

    for rows in (512, 512, 4000, 4010, 4000):
        chosen(choose(rows))
    assert tried == [(512, True), (4000, True), (4010, True)], "also the searched problem; each shape once"
    refused = choose(640)
    assert isinstance(refused, NoSelection)
    assert "largest error" in " ".join(refused.reasons)


def test_selection_is_independent_of_row_order(locked: Path) -> None:
    rows = read_lockfile(locked)
    asked = replace(MISSION, seq_q=384, seq_kv=384)
    assert by_distance(asked, rows) == by_distance(asked, rows[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_hash": "0" * 16}, "template"),
        ({"code_hash": "0" * 16}, "machine code"),
        ({"config": FAST}, "template"),
    ],
)
def test_builds_must_match_the_lockfile(locked: Path, change: dict[str, Any], message: str) -> None:
    rows = [replace(row, **change) if row.problem == CAUSAL else row for row in read_lockfile(locked)]
    selector = Selector(GPU, H200, rows, locked=True)
    with pytest.raises(LockMismatchError, match=rf"{CAUSAL.key} on {GPU}.*{message}.*lock"):
        selector.select(CAUSAL)
    assert chosen(selector.select(MISSION)).exact


def test_unknown_locked_family_is_a_mismatch(locked: Path) -> None:
    rows = [replace(row, config=replace(row.config, family="gone")) for row in read_lockfile(locked)]
    with pytest.raises(LockMismatchError, match="gone"):
        Selector(GPU, H200, rows, locked=True).select(MISSION)


def edited(text: str, edit: Callable[[Any], None], *, sign: bool) -> str:
    """Returns an edited lockfile, with or without a corrected hash."""
    import hashlib

    document = json.loads(text)
    edit(document)
    if sign:
        body = json.dumps(document["kernels"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        document["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(document)


@pytest.mark.parametrize(
    ("edit", "sign", "message"),
    [
        (lambda d: d["kernels"][0].update(median_us=1.0), False, "was changed"),
        (lambda d: d.update(evoengine_lock=2), True, "format 2"),
        (lambda d: d.pop("written_by"), True, "is not a lockfile"),
        (lambda d: d["kernels"][0].pop("gpu"), True, r"kernels\[0\].*gpu"),
        (lambda d: d["kernels"][0].update(extra=1), True, r"kernels\[0\].*extra"),
        (lambda d: d["kernels"][1].update(median_us=-1), True, r"kernels\[1\]\.median_us: .*> 0"),
        (lambda d: d["kernels"][1].update(row_id="7"), True, r"kernels\[1\]\.row_id: "),
        (lambda d: d["kernels"][0]["config"].update(BLOCK_M=[1]), True, r"kernels\[0\]\.config"),
        (lambda d: d["kernels"][0]["problem"].update(heads=-1), True, r"kernels\[0\]\.problem: "),
        (lambda d: d["kernels"][0].update(champion="yes"), True, r"kernels\[0\]\.champion: "),
    ],
)
@pytest.mark.every(3)
def test_damaged_lockfiles_are_rejected_with_the_reason(
    locked: Path, edit: Callable[[Any], None], sign: bool, message: str
) -> None:
    locked.write_text(edited(locked.read_text(), edit, sign=sign))
    with pytest.raises(StoreError, match=rf"evoengine.lock.*{message}"):
        read_lockfile(locked)


def test_other_files_are_rejected_as_lockfile(tmp_path: Path) -> None:
    for text in ("", "[]", "not json", '{"kernels": []}'):
        (tmp_path / "evoengine.lock").write_text(text)
        with pytest.raises(StoreError, match="lockfile"):
            read_lockfile(tmp_path / "evoengine.lock")


# -- sources of kernels -----------------------------------------------------------------------------------------------


def test_order_of_sources(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert find_source("", {}, here) is None
    for name in ("leaderboard.db", "evoengine.lock", "named.db", "variable.lock"):
        (here / name).touch()
        found = find_source("", {}, here)
        assert found is not None
    assert find_source("", {}, here) == KernelSource(here / "evoengine.lock", locked=True)
    environment = {"EVOENGINE_LEADERBOARD": str(here / "variable.lock")}
    assert find_source("", environment, here) == KernelSource(here / "variable.lock", locked=True)
    named = f"sqlite:///{here / 'named.db'}"
    assert find_source(named, environment, here) == KernelSource(here / "named.db", locked=False)
    (here / "evoengine.lock").unlink()
    assert find_source("", {}, here) == KernelSource(here / "leaderboard.db", locked=False)


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere\.db"):
        find_source("nowhere.db", {}, tmp_path)
    with pytest.raises(StoreError, match=r"EVOENGINE_LEADERBOARD.*nowhere\.lock"):
        find_source("", {"EVOENGINE_LEADERBOARD": "nowhere.lock"}, tmp_path)
