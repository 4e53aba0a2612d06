"""``models.py``: its suite, rows from hand-made documents, and interrupted runs on the emulator."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from evoengine.cli.app import root_command
from evoengine.engine.options.problem import ProblemOptions
from evoengine.errors import UsageError
from evoengine.model import Problem
from tests.scripts.running import Run, load

SUITE = """
[[problems]]
name = "no-family"
model = "A head_dim that no family supports"
source = "https://example.org/a"
problem = "1x1x16x7"

[[problems]]
name = "tiny"
model = "Tiny"
source = "https://example.org/b"
problem = "1x1x16x16"
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("models")


FACTS = {"at": "2026-11-29T12:00", "command": "models.py", "suite": "models.toml"}


def parsed(words: list[str]) -> Problem:
    """The problem that the command line makes of the words."""
    command: Any = root_command()
    given = command.commands["space"].make_context("space", words).params
    return ProblemOptions(**{name: given[name] for name in ProblemOptions.__dataclass_fields__}).build()


def test_the_suite_has_problems_of_all_groups_and_their_sources(script: ModuleType) -> None:
    entries = script.read_suite(script.SUITE)
    assert len(entries) >= 30
    assert len({entry.build().key for entry in entries}) == len(entries)
    assert min(Counter(entry.group for entry in entries)[group] for group in script.GROUPS) >= 8
    assert all(entry.source.startswith("https://") for entry in entries)
    assert [entry.name for entry in entries if parsed(entry.words) != entry.build()] == []
    lengths = [(entry.group, max(entry.build().seq_q, entry.build().seq_kv), entry.build().seq_q) for entry in entries]
    assert all((longest <= 1024) == (group == "short") for group, longest, queries in lengths if queries > 1)
    assert all(group == "decode" for group, _, queries in lengths if queries == 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "problem"),
        ('[[problems]]\nname = "a"\nmodel = "m"\nsource = "s"\nproblem = "1x1x8x8"\nheads = 3\n', "heads"),
        (SUITE + SUITE, "distinct names"),
        (SUITE.replace("1x1x16x7", "1x1"), "1x1"),
    ],
)
def test_a_malformed_suite_is_one_line(script: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as refused:
        script.read_suite(tmp_path / "suite.toml")
    assert "\n" not in str(refused.value)


def line(name: str, median_us: float | None, outcome: str = "ok", note: str = "") -> dict[str, Any]:
    return {"name": name, "ours": name == "evoengine", "outcome": outcome, "median_us": median_us, "note": note}


def steps(
    ours_us: float | None, *peers: dict[str, Any], ratio: float | None, best: str | None, at: str = "2026-11-29"
) -> dict[str, Any]:
    """Steps of a problem as stored, with the parts of the documents that rows need."""
    rows = [line("evoengine", ours_us, "ok" if ours_us else "failed", "" if ours_us else "no champion"), *peers]
    compare = {"device": "NVIDIA X", "rows": rows, "best_peer": best, "ours_over_best_peer": ratio}
    return {
        "search": {"document": {"predicted": False, "evaluated": 500}, "why": "", "seconds": 30.0, "at": "2026-11-28"},
        "compare": {"document": compare, "why": "", "seconds": 20.0, "at": at},
    }


def test_rows_and_means_of_hand_made_documents(script: ModuleType) -> None:
    short, other, long, decode = (
        script.Entry(name, "Model", "https://example.org", problem)
        for name, problem in (("a", "1x8x512x64"), ("b", "1x8x256x64"), ("c", "1x8x2048x64"), ("d", "1x8x1x64"))
    )
    triton, crashed = line("triton", 6.0), line("fa4", None, "failed", "exit code -11")
    rows = [
        script.row_of(short, steps(3.0, triton, crashed, ratio=0.5, best="triton")),
        script.row_of(other, steps(4.0, line("triton", 2.0), ratio=2.0, best="triton", at="2026-11-26")),
        script.row_of(long, steps(None, triton, ratio=None, best="triton")),
        script.row_of(decode, {"search": {"document": None, "why": "no correct kernel", "seconds": 9.0}}),
    ]
    assert [row["why"] for row in rows] == ["", "", "compare: no champion", "search: no correct kernel"]
    assert (rows[0]["peers_us"], rows[0]["best_peer_us"]) == ({"triton": 6.0}, 6.0)
    assert rows[0]["peers_without_time"] == {"fa4": "failed: exit code -11"}
    assert script.geometric_means(rows) == {"short": pytest.approx(1.0)}
    text = script.page(rows, FACTS)
    assert "| up to 1,024 tokens | 2 | 1.000 | 0.80 | 2.000 | 1 |" in text
    assert "`1x8x512x64-fp16` | X | 3.00 | triton | 6.00 | **0.500** | 30 | fa4 failed: exit code -11 |" in text
    assert "`1x8x256x64-fp16` | X | 4.00 | triton | 2.00 | 2.000 | 30 | of 2026-11-26 |" in text
    assert "`1x8x1x64-fp16` | – | – | – | – | – | 9 | search: no correct kernel |" in text


def test_a_problem_that_no_peer_does_is_measured_and_has_no_ratio(script: ModuleType) -> None:
    entry = script.Entry("a", "Model", "https://example.org", "1x8x512x64")
    row = script.row_of(entry, steps(3.0, line("fa4", None, "unavailable", "no sinks"), ratio=None, best=None))
    assert (row["why"], row["ours_us"], row["ratio"]) == ("", 3.0, None)
    text = script.page([row], FACTS | {"peers": ["fa4"], "left": ["b", "c"]})
    assert "`1x8x512x64-fp16` | X | 3.00 | – | – | – | 30 | no peer here does this problem |" in text
    assert "the peers fa4" in text
    assert "Not measured yet: b, c." in text
    assert "## Decode" not in text


def test_a_step_that_is_cut_off_twice_has_failed(script: ModuleType, tmp_path: Path) -> None:
    state = script.State(tmp_path / "state.json", {})
    cut = script.common.Outcome(None, "no result within 300 s", 300.0, cut=True)
    for _ in range(3):
        state.record("a", "search", replace(cut, seconds=9.0))
    state.record("a", "search", cut)
    again = script.State(tmp_path / "state.json", {})
    assert not again.done("a")
    assert "search" not in again.of("a")
    again.record("a", "search", cut)
    assert again.done("a")
    again.forget_failures()
    assert not script.State(tmp_path / "state.json", {}).done("a")


def test_problems_of_the_page_are_kept_and_not_measured_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = script.read_suite(script.SUITE)
    settings = {"device": "auto", "budget": None, "peers": "sdpa"}
    page = tmp_path / "page.json"

    def ours_us(work: str, times: dict[str, float]) -> list[float]:
        """Our times on the page after a machine that has measured these problems wrote it."""
        (tmp_path / work).mkdir()
        state = script.State(tmp_path / work / "state.json", settings)
        for name, time_us in times.items():
            state.of(name).update(steps(time_us, line("sdpa", 6.0), ratio=time_us / 6.0, best="sdpa"))
        state.save()
        words = ["--work", str(tmp_path / work), "--page", str(page), "--peers", "sdpa", "--time-limit", "0"]
        monkeypatch.setattr(sys, "argv", ["models.py", *words])
        script.main()
        return [row["ours_us"] for row in json.loads(page.read_text())["problems"]]

    first, second, third, *others = (entry.name for entry in entries)
    assert ours_us("one", {first: 1.0, third: 3.0}) == [1.0, 3.0]
    assert json.loads(page.read_text())["left"] == [second, *others]
    assert ours_us("two", {second: 2.0, third: 4.0}) == [1.0, 2.0, 4.0]
    changed = [msgspec.structs.replace(entries[0], problem="1x1x16x16"), *entries[1:]]
    assert list(script.rows_of_page(page, settings, changed)) == [second, third]
    with pytest.raises(UsageError, match="another --page"):
        script.rows_of_page(page, settings | {"budget": 9}, entries)


@pytest.mark.thorough
def test_a_run_goes_on_where_it_stopped(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    words = ["--suite", "suite.toml", "--work", "work", "--device", "emulator", "--budget", "2"]
    monkeypatch.chdir(tmp_path)

    def measured(*more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["models.py", *words, *more])
        code = script.main()
        return code, capsys.readouterr().out

    left = "0 of 2 problems are measured, left: no-family, tiny\n"
    assert measured("--time-limit", "0") == (1, left)
    assert measured("--only", "tiny")[0] == 0
    first = json.loads(Path("work/state.json").read_text())["problems"]
    assert list(first) == ["tiny"]
    assert first["tiny"]["search"]["document"]["evaluated"] == 2
    assert measured("--page", "page")[0] == 0
    assert json.loads(Path("work/state.json").read_text())["problems"]["tiny"] == first["tiny"], "no step ran again"
    refused, tiny = json.loads(Path("page.json").read_text())["problems"]
    assert refused["why"].startswith("search: family hopper")
    assert tiny["predicted_us"] > 0
    assert "µs" in Path("page.md").read_text()
    state = json.loads(Path("work/state.json").read_text())
    state["problems"]["no-family"] = {"search": first["tiny"]["search"]}
    Path("work/state.json").write_text(json.dumps(state))
    Path("work/tiny.db").unlink()
    assert "no-family: search: family" in measured()[1], "its leaderboard is missing"
    assert not Path("work/tiny.db").exists(), "a finished problem is not searched again"
    with pytest.raises(UsageError, match="give the same options"):
        measured("--peers", "sdpa")


@pytest.mark.slow
def test_a_search_that_takes_too_long_is_a_row_and_leaves_no_process(run: Run, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    words = ["--suite", tmp_path / "suite.toml", "--work", tmp_path / "work", "--device", "emulator", "--only", "tiny"]
    done = run("models.py", *words, "--step-limit", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny: search: ")
    holders = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _text(path)]
    assert holders == []


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
