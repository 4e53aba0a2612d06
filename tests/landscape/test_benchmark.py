"""``strategy_benchmark.py`` with few seeds and small budgets."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import median_us
from evoengine.model import Status
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Proposal
from tests.landscape.making import RECORDED
from tests.scripts.running import Run, runner
from tests.warm import WarmPython

SHORT = ("--seeds=2", "--budget=25", "--lags=0,8", "--strategies=evolution,random", "--kernel-tuner=none")


@pytest.fixture(scope="module")
def run(warm: WarmPython, shared_cache: Path) -> Run:
    return partial(runner(warm, shared_cache), "strategy_benchmark.py")


@pytest.fixture(scope="module")
def written(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    for name, options in (("first", ()), ("again", ("--cached-only",))):
        words = (*SHORT, "--peers=gp-ei,optuna-tpe", "--cache", str(folder / "cache"), *options)
        done = run(str(RECORDED), *words, f"--out={folder / name}")
        assert done.returncode == 0, done.stderr
        assert "left out: " in done.stderr
    return folder


@pytest.mark.thorough
def test_finished_runs_are_taken_from_the_cache(written: Path) -> None:
    first, again = (json.loads((written / f"{name}.json").read_text()) for name in ("first", "again"))
    assert first["landscapes"] == again["landscapes"]  # CPU times, too: nothing ran again
    kept = _kept(written)
    assert len(kept) == 16  # four strategies, two lags, two seeds
    assert all(len(run["shares"]) == 25 and run["seconds"] > 0 for run in kept.values())
    assert "--cache" not in (written / "first.md").read_text()


@pytest.mark.parametrize(
    "key", [pytest.param(("evolution", 8, 1), marks=pytest.mark.thorough), ("gp-ei", 8, 1), ("optuna-tpe", 0, 1)]
)
def test_a_run_follows_from_its_seed(
    monkeypatch: pytest.MonkeyPatch, repo_root: Path, written: Path, key: tuple[str, int, int]
) -> None:
    monkeypatch.syspath_prepend(repo_root / "scripts" / "measure")
    task, running = (importlib.import_module(f"strategies.{name}") for name in ("tasks", "running"))
    name, lag, seed = key
    tuner = task.OURS if name == "evolution" else task.PEERS
    again = running.run_task(task.Task(str(RECORDED), tuner, name, seed, 25, lag))
    assert list(again.shares) == _kept(written)[key]["shares"]


def _kept(written: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    runs = [json.loads(file.read_text()) for file in (written / "cache").glob("*.json")]
    return {(run["facts"]["strategy"], run["facts"]["lag"], run["facts"]["seed"]): run for run in runs}


def test_figures_follow_from_the_runs(written: Path) -> None:
    """Recomputes what the page says from the shares that the cache holds."""
    (landscape,) = json.loads((written / "first.json").read_text())["landscapes"]
    assert (landscape["configs"], landscape["predicted"], landscape["failed"]) == (216, True, 0)
    assert landscape["optimum_us"] == pytest.approx(3.648, abs=0.01)
    entries = {(one["strategy"], one["lag"]): one for one in landscape["entries"]}
    assert len(entries) == 8
    runs: dict[tuple[str, int], list[list[float]]] = {}
    for (name, lag, _), kept in _kept(written).items():
        runs.setdefault((name, lag), []).append(kept["shares"])
    for key, shares in runs.items():
        areas = [sum(one) / 25 for one in shares]
        assert entries[key]["auc"][1] == pytest.approx(sum(areas) / 2, abs=1e-4)
        needed = sorted(sum(share < 1 / 1.05 for share in one) + 1 for one in shares)
        slowest = needed[1] if needed[1] <= 25 else None
        assert entries[key]["evaluations"]["0.05"][1] == slowest  # the worse of two
        assert entries[key]["within_2_percent"] == sum(one[-1] >= 1 / 1.02 for one in shares) / 2


def test_results_within_the_lag_are_unknown(written: Path) -> None:
    runs = {key: kept["shares"] for key, kept in _kept(written).items()}
    for seed in (0, 1):
        assert runs["random", 0, seed] == runs["random", 8, seed]  # it ignores results
    assert any(runs[name, 0, seed] != runs[name, 8, seed] for name in ("evolution", "gp-ei") for seed in (0, 1))


@pytest.mark.parametrize("name", ["evolution", "tpe", "strategies.peers:PlainGp", "strategies.peers:MultivariateTpe"])
@pytest.mark.every(2)
def test_a_strategy_is_asked_ahead_by_the_lag(monkeypatch: pytest.MonkeyPatch, repo_root: Path, name: str) -> None:
    """The first proposal that may differ when a result differs is the one ``lag`` proposals after the next."""
    monkeypatch.syspath_prepend(repo_root / "scripts" / "measure")
    landscape, lag, walks = read_landscape(RECORDED), 5, []
    for factor in (1.0, 0.01):
        pending: list[Proposal] = []
        strategy, walk = make_strategy(name, landscape.spaces, 1), []
        for number in range(60):
            if len(pending) > lag:
                told = pending.pop(0)
                us = median_us(landscape.by_config[told.config])
                strategy.tell(told, us * factor if number == 40 else us, Status.OK)
            else:
                assert number <= lag
            proposal = strategy.ask(lag)
            assert proposal is not None, "a result is missing that the lag should cover"
            pending.append(proposal)
            walk.append(proposal.config)
        walks.append(walk)
    assert walks[0][:40] == walks[1][:40]
    assert walks[0] != walks[1]


def test_page_and_chart_are_written(written: Path) -> None:
    page = (written / "first.md").read_text()
    for words in (
        "| evolution |",
        "NVIDIA L4, predicted",
        "left out: ",
        "first.svg",
        "### Lag 8",
        "Mann–Whitney",
        "commit ",
    ):
        assert words in page
    chart = ET.fromstring((written / "first.svg").read_text())
    assert len(chart.findall(".//{http://www.w3.org/2000/svg}polyline")) == 3  # evolution, random, the best peer


@pytest.mark.thorough
def test_a_further_commit_is_added_to_a_report(run: Run, written: Path) -> None:
    """The same runs under another name: all figures of the two commits agree."""
    report = (written / "first.json").read_text()
    (judged,) = json.loads(report)["judged"]
    (written / "older.json").write_text(report.replace(f'"{judged["commit"]}"', '"0123abc"'))
    words = (str(RECORDED), "--cache", str(written / "cache"), f"--out={written / 'both'}", "--add-to")
    done = run(*words, str(written / "older.json"))
    assert done.returncode == 0, done.stderr
    assert len(_kept(written)) == 16  # nothing ran again
    (landscape,) = json.loads((written / "both.json").read_text())["landscapes"]
    own = [entry for entry in landscape["entries"] if entry["strategy"] == "evolution"]
    assert [(entry["commit"], entry["lag"]) for entry in own] == [
        ("0123abc", 0),
        ("0123abc", 8),
        (judged["commit"], 0),
        (judged["commit"], 8),
    ]
    assert own[2:] == [{**entry, "commit": judged["commit"]} for entry in own[:2]]
    for comparison in landscape["comparisons"]:
        first, second = comparison["judged"]
        assert second == {**first, "commit": judged["commit"]}
    page = (written / "both.md").read_text()
    assert "| evolution 0123abc to 5 % | AUC | better | p |" in page
    assert page.count("EvoEngine at commit ") == 2
    done = run(*words, str(written / "first.json"))
    assert (done.returncode, "has commit" in done.stderr) == (2, True)


def test_landscapes_are_halved_by_the_hash_of_their_names(monkeypatch: pytest.MonkeyPatch, repo_root: Path) -> None:
    """``printf long-causal-h200 | sha256sum`` begins with 3f, ``mission-h200`` with 0a, ``pnpoly-RTX_3090`` with cb."""
    monkeypatch.syspath_prepend(repo_root / "scripts" / "measure")
    is_held_out = importlib.import_module("strategies.tasks").is_held_out
    assert is_held_out("some/folder/long-causal-h200.landscape.xz")
    assert is_held_out("pnpoly-RTX_3090.landscape.xz")
    assert not is_held_out("mission-h200.landscape.xz")


@pytest.mark.thorough
def test_evolution_is_worth_its_evaluations_on_recorded_gpus(run: Run, tmp_path: Path, repo_root: Path) -> None:
    """Few seeds and wide margins; docs/results/strategies.md has more."""
    landscapes = sorted(map(str, (repo_root / "docs/results/landscapes").glob("*.landscape.xz")))
    assert landscapes
    short = (
        "--seeds=3",
        "--lags=0",
        "--strategies=evolution,random",
        "--peers=none",
        "--kernel-tuner=none",
        "--jobs=2",
    )
    done = run(*landscapes, *short, f"--out={tmp_path / 'short'}")
    assert done.returncode == 0, done.stderr
    for landscape in json.loads((tmp_path / "short.json").read_text())["landscapes"]:
        assert landscape["predicted"] is False
        assert landscape["configs"] >= 5000
        own, rival = landscape["entries"]
        assert own["curve"][99] >= 1 / 1.03, landscape["name"]
        assert own["auc"][1] > rival["auc"][1]
        needed, rivals = (one["evaluations"]["0.05"][1] or 1000 for one in (own, rival))
        assert needed <= min(70, rivals), landscape["name"]


def test_invalid_arguments_are_refused_with_one_line(run: Run, tmp_path: Path) -> None:
    for arguments, message in (
        ((str(tmp_path / "none.xz"), *SHORT), "none.xz: cannot be read"),
        ((str(RECORDED), "--strategies=luck"), "unknown strategy 'luck'"),
        ((str(RECORDED), "--peers=luck"), "unknown peer 'luck'"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
