"""One row on one screen, its source alone, and rankings that do not repeat what their rows share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evoengine.cli.output.run_summary import standing_lines
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Duel, Evaluation, GpuReading, Provenance, Status, Telemetry, Value, Verdict
from evoengine.space.loader import find_space
from tests.api.boards import mma
from tests.cli.calling import Evo
from tests.cli.test_measurements import result
from tests.cli.test_terminal import seen
from tests.leaderboard.test_variants import variant
from tests.report.boards import H200, L4, evaluation, key_of

SCREEN = (24, 100)
"""Lines and columns."""
SOURCE = "// kernel\nint a = 1;\n" + "x" * 300 + ";\n"


def row(row_id: int, **changes: object) -> Row:
    made = Row(
        id=row_id,
        rank=1,
        status=Status.OK,
        median_us=5.0,
        predicted=False,
        device_kind="cuda",
        device=H200.name,
        arch="sm_90",
        problem="1x2x64x64-fp16",
        family="mma",
        config={},
        registers=None,
        spill_bytes=None,
        smem_bytes=None,
        max_error=None,
        speedup=None,
        champion=False,
        method="graph-warm",
        low_us=None,
        high_us=None,
        code_hash="",
        reason="",
        study_id=1,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def whole(config: Config, number: int) -> Evaluation:
    """A measured row with everything that a search on a GPU stores."""
    reading = GpuReading(1980, 3201, 38, 310.0, ("gpu_idle", "sw_power_cap"))
    made = evaluation(number, 5.0 - 0.5 * number)
    assert made.timing is not None
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    timing = replace(made.timing, energy_uj=3157.1, telemetry=Telemetry(reading, reading, 20, gpu=uuid))
    verdict = Verdict(
        True, 1.5e-4, 9e-4, 2e-4, 21, "one query row, 257 keys, kv_heads 3, slices of packed QKV", "", 2**47
    )
    hashes = (f"{kind}{number}{'0' * 14}" for kind in "sct")
    notes = ("compute-sanitizer memcheck, racecheck and synccheck found nothing", "a second note", "a third note")
    made = replace(made, config=config, timing=timing, verdict=verdict, source=SOURCE, notes=notes)
    source_hash, code_hash, template_hash = hashes
    return replace(made, source_hash=source_hash, code_hash=code_hash, template_hash=template_hash)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A champion with four generations of ancestors that differ in many tunables, and three challenges."""
    values: list[Mapping[str, Value]] = [
        {},
        {"BLOCK_N": 16},
        {"BLOCK_N": 32, "WARPS_M": 2, "STAGES_K": 2, "STAGES_V": 2, "ROW_SUM": "tensor", "PEEL_FIRST": True},
        {"BLOCK_N": 64, "WARPS_M": 4, "STAGES_K": 3, "CACHE_OP": "ca", "EPILOGUE": "shared", "UNROLL": 2},
        {"BLOCK_N": 48, "WARPS_M": 1, "SMEM_LAYOUT": "padded", "PAD_HALVES": 8, "MAXRREGCOUNT": 128, "MIN_CTAS": 2},
    ]
    configs = [mma(own) for own in values]
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        study = board.open_study(key_of(H200))
        for number, config in enumerate(configs):
            parents = (configs[number - 1].key,) if number else ()
            move = "linked changes, then one change" if number else "start"
            board.acquire_lease(study, config, 100, number, Provenance(move, parents))
            board.record(study, whole(config, number))
            won = Duel((4.0,) * 20, (5.0,) * 20, 0.2, 0.19, 0.03, True)
            board.record_challenge(study.scope, number + 1, number or None, won if number else None)
    return tmp_path


def test_a_row_fits_on_one_screen(folder: Path) -> None:
    text = seen(folder, [("leaderboard", "show")], SCREEN[1], NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[1:]
    assert len(lines) <= SCREEN[0], text
    assert max(map(len, lines)) <= SCREEN[1]
    told = " ".join(" ".join(lines).split())
    for fact in ("5: ok, rank 1, champion", "passed in 21 cases", "64 registers", "3.000 us measured", "3.00x cudnn",
                 "3157.1 uJ", "row 5 replaced row 4: gain 20.0%", "3 more ancestors",
                 "2 more notes", "source s400", "code c400", "evolution, seed 7"):  # fmt: skip
        assert fact in told, fact
    assert re.search("row 5, 3.000 us: linked changes, then one change .*row 4: BLOCK_N 64 → 48, ", told)
    assert "int a = 1" not in told


def test_the_config_is_told_by_its_differences_from_the_start_of_the_family(quick_evo: Evo, folder: Path) -> None:
    start = find_space("mma").starts[0]
    known = {tunable.name: tunable.values[0] for tunable in find_space("mma").tunables} | dict(start.values)
    config = quick_evo("leaderboard", "show", "--json").json()["config"]
    expected = {f"{name}={value}" for name, value in config.items() if known[name] != value}
    shown = quick_evo("leaderboard", "show").out
    (line,) = (line for line in shown.splitlines() if line.startswith("config "))
    head, _, differences = line.partition(", but ")
    assert head.split(maxsplit=1)[1] == f"mma as its start {start.name}"
    assert set(differences.split()) == expected
    assert len(expected) < len(config) / 2


def test_a_family_that_is_unknown_here_shows_the_whole_config(quick_evo: Evo, tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        board.record(board.open_study(key_of(L4)), evaluation(1, 5.0, family="gone", predicted=True))
    assert "gone: BLOCK_N=64 EPILOGUE=direct N=1 STAGES=2" in quick_evo("leaderboard", "show").out


def test_the_source_is_printed_alone(quick_evo: Evo, folder: Path, tmp_path: Path) -> None:
    assert quick_evo("leaderboard", "show", "--source").out == SOURCE
    narrow = seen(folder, [("leaderboard", "show", "--source")], 40, NO_COLOR="1")
    assert "x" * 300 in narrow, "a wrapped line would not compile"
    with Leaderboard(f"sqlite:///{tmp_path / 'other.db'}") as board:
        board.record(board.open_study(key_of(L4)), replace(evaluation(1, 5.0, predicted=True), source=""))
    done = quick_evo("leaderboard", "show", "--source", "--db", "other.db")
    assert (done.code, done.out, "no source" in done.err) == (2, "", True)


def test_lineage_shows_a_long_line_of_descent(quick_evo: Evo, tmp_path: Path) -> None:
    line = [variant(str(number)) for number in range(400)]
    with Leaderboard(tmp_path / "leaderboard.db") as board:
        for one, parent in zip(line, ["mma", *(one.name for one in line)], strict=False):
            board.variants.add(one, "random", (parent,))
    shown = quick_evo("lineage")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.count("mma~") == 402, "two variants end a tree and begin the next"
    found = quick_evo("lineage", line[299].name, "--json")
    assert (found.code, found.err) == (0, "")
    assert [found.out.count(line[number].name) for number in (149, 298, 299, 300, 399)] == [1, 1, 2, 1, 1]


def test_a_ranking_prints_only_the_tunables_that_differ(quick_evo: Evo, folder: Path) -> None:
    rows = quick_evo("leaderboard", "--json").json()
    differ = {name for name in rows[0]["config"] if len({str(row["config"][name]) for row in rows}) > 1}
    table = quick_evo("leaderboard").out
    lines = [line for line in table.splitlines() if re.match(r" +\d+[* ] ", line)]
    assert len(lines) == len(rows) == 5
    for line, one in zip(lines, rows, strict=True):
        assert dict(re.findall(r"(\w+)=(\w+)", line)) == {name: str(one["config"][name]) for name in differ}
    (shared,) = re.findall(r"^all rows of mma: (.*)$", table, re.MULTILINE)
    assert set(dict(re.findall(r"(\w+)=(\w+)", shared))) == rows[0]["config"].keys() - differ
    single = quick_evo("leaderboard", "--top", "1").out
    assert "the only row of mma: " in single
    assert len(re.findall(r"BLOCK_N=", single)) == 1


def test_the_summary_ends_with_the_best_the_champion_and_the_reason() -> None:
    best, champion = row(16, median_us=14.41, predicted=True), row(5, median_us=14.71, predicted=True)
    reason = "row 16 is 2.0% faster than row 5, and --accept asks for 3.0%"
    done = result(best=best, champion=champion, difference=reason, accept_threshold=0.03)
    run, leader, why, accept = standing_lines(done, predicted=True, replayed=False)
    for line, name, found in ((run, "this run", best), (leader, "champion", champion)):
        assert line.startswith(name)
        assert re.search(rf"\b{found.median_us} us predicted on NVIDIA H200, row {found.id}$", line)
    assert why.split(maxsplit=1) == ["why", reason]
    assert re.match(r"accept .*\b3\.0%", accept)
    same = result(best=best, champion=best, accept_threshold=0.0)
    _, leader, accept = standing_lines(same, predicted=True, replayed=False)
    assert re.search(r"\brow 16, the same\b", leader)
    assert re.match("accept .*predictions", accept)
    assert "%" not in accept
    nothing = result(champion=champion, accept_threshold=0.0)
    run, leader, accept = standing_lines(nothing, predicted=True, replayed=True)
    assert run.startswith("this run")
    assert "us" not in run.split()
    assert leader.endswith("row 5")
    assert re.match("accept .*replay", accept)
    assert list(standing_lines(result(), predicted=False, replayed=False)) == []
