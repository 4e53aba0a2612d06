"""``evolve`` and ``lineage`` end to end: two improvements are removed from a template and found again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.engine.compare import KernelLoader, own_kernel
from evoengine.engine.options.verbs import CompareOptions
from evoengine.errors import UsageError
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo
from evoengine.space.data_dirs import data_dirs
from evoengine.target import get_target
from tests.cli.calling import Done, Evo
from tests.evolution.conftest import BUDGET, EVOLVE
from tests.evolution.weakened import REMOVED, ROOT

Evolved = tuple[Path, Done]


@pytest.fixture
def folder(evolved: Evolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder with a copy of the evolved leaderboard, and the weakened family laid over the shipped one."""
    shutil.copyfile(evolved[0] / "board.db", tmp_path / "board.db")
    monkeypatch.setenv("EVOENGINE_DATA", str(evolved[0] / "data"))
    return tmp_path


def attempts_of(evolved: Evolved) -> list[dict[str, Any]]:
    assert evolved[1].code == 0, evolved[1].err
    found: list[dict[str, Any]] = evolved[1].json()["attempts"]
    return found


def test_the_removed_improvements_are_found_again_and_the_tuned_result_is_champion(
    evolved: Evolved, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = evolved[1].json()
    best, base = result["best"], result["attempts"][0]
    assert base["operator"] == "base"
    assert best["best_us"] < base["best_us"]
    assert (result["champion"]["id"], result["champion"]["family"]) == (best["row_id"], best["variant"])
    monkeypatch.setenv("EVOENGINE_DATA", str(evolved[0] / "data"))
    with Leaderboard(evolved[0] / "board.db", create=False) as board:
        stored = board.variants.find(best["variant"])
    assert stored is not None
    weak = TemplateLibrary(*data_dirs("templates"), variants=(stored.variant,))
    shipped = TemplateLibrary(ROOT / "templates").files("scalar")
    assert weak.files("scalar") != shipped
    assert weak.files(best["variant"]) == shipped, "all improvements, and nothing else"
    assert len(stored.variant.patch.edits) == len(REMOVED)


def test_bad_patches_and_controls_are_rejected_and_reported(evolved: Evolved) -> None:
    attempts = attempts_of(evolved)
    bad = {one["summary"]: one for one in attempts if one["origin"] in ("doubled-sum", "unknown-name", "left-region")}
    stages = {one["origin"]: one["stage"] for one in bad.values()}
    assert len(stages) >= 2
    expected = {"doubled-sum": "gate", "unknown-name": "compile", "left-region": "apply"}
    assert stages.items() <= expected.items()
    assert all(one["reason"] and one["best_us"] is None for one in bad.values())
    operators = {one["operator"]: one for one in evolved[1].json()["operators"]}
    assert [name for name, one in operators.items() if one["control"]] == ["random", "parent"]
    assert operators["parent"]["correct"] == 0, "the parent itself is never accepted"
    assert [one["candidates"] for one in attempts if one["operator"] == "parent"] == [0], "nor compiled"
    assert operators["random"]["faster"] == 0
    proposals = [one for one in attempts if one["operator"] != "base"]
    assert len(proposals) == BUDGET
    assert [one["operator"] in ("random", "parent") for one in proposals] == [
        number % 4 == 3 for number in range(BUDGET)
    ]


def test_every_searched_variant_has_its_row_counters_and_lineage(evolved: Evolved) -> None:
    searched = [one for one in attempts_of(evolved) if one["stage"] == "tuned"]
    with Leaderboard(evolved[0] / "board.db", create=False) as board:
        for attempt in searched:
            record = board.get(attempt["row_id"])
            assert (record.row.family, record.row.median_us) == (attempt["variant"], attempt["best_us"])
            assert (record.variant is None) == (attempt["variant"] == "scalar")
            features = attempt["features"]
            assert features["registers"] == record.row.registers
            assert features["predicted_us"] == pytest.approx(record.row.median_us, rel=0.05)
        parents = {one.name: one.parents for one in board.variants.all()}
    assert all(parents[one["variant"]][0] == one["parent"] for one in searched if one["operator"] != "base")


def test_stored_variants_run_only_with_consent_and_the_evolution_goes_on(
    evolved: Evolved, folder: Path, evo: Evo, quick_evo: Evo
) -> None:
    refused = quick_evo(*EVOLVE, "--budget", str(BUDGET))
    assert refused.code == 2
    assert "--variants" in refused.err
    done = quick_evo(*EVOLVE, "--budget", str(BUDGET), "--variants", "--json")
    assert (done.code, done.json()["new"], done.json()["attempts"]) == (0, 0, attempts_of(evolved))
    lost = 8  # what a killed evolution had not stored yet: a proposal whose candidate is evaluated, and a control
    with closing(sqlite3.connect(folder / "board.db")) as file, file:
        file.execute("DELETE FROM evo_attempts WHERE id >= ?", (lost,))
    again = evo(*EVOLVE, "--budget", "8", "--variants", "--json").json()["attempts"]
    expected = attempts_of(evolved)[:9]
    assert [one["candidates"] for one in expected[lost - 1 :]] == [1, 0]
    expected[lost - 1]["candidates"] = 0
    volatile = ("seconds",)
    for one, other in zip(again, expected, strict=True):
        assert {k: v for k, v in one.items() if k not in volatile} == {
            k: v for k, v in other.items() if k not in volatile
        }


def test_lineage_draws_the_tree_and_prints_the_patch(evolved: Evolved, folder: Path, quick_evo: Evo) -> None:
    best = evolved[1].json()["best"]
    done = quick_evo("lineage", best["variant"], "--patch", "--db", "board.db")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("scalar ")
    marked = [line for line in lines if line.endswith("  <")]
    assert len(marked) == 1
    assert f"{best['best_us']:.3f} us (row {best['row_id']})" in marked[0]
    assert done.out.count("<<<<<<< SEARCH") == len(REMOVED)
    of_row = quick_evo("lineage", str(best["row_id"]), "--db", "board.db")
    assert of_row.out.splitlines() == lines[: len(of_row.out.splitlines())]
    names = {one["variant"] for one in attempts_of(evolved) if one["stage"] not in ("apply", "novelty")}
    everything = quick_evo("lineage", "--db", "board.db")
    assert all(name in everything.out for name in names)
    assert quick_evo("lineage", "scalar~00000000", "--db", "board.db").code == 2


def test_the_report_shows_the_tree(evolved: Evolved, folder: Path, quick_evo: Evo) -> None:
    pytest.importorskip("plotly")
    assert quick_evo("report", "-o", "page.html", "--db", "board.db").code == 0
    text = (folder / "page.html").read_text()
    best = evolved[1].json()["best"]
    assert "Variants of the source" in text
    assert f"· {best['variant']}" in text
    assert "doubled" not in text or "parity_failed" in text


def test_a_row_of_a_variant_is_exported_only_with_consent(evolved: Evolved, folder: Path, quick_evo: Evo) -> None:
    row = str(evolved[1].json()["best"]["row_id"])
    refused = quick_evo("export", row, "-o", "best.cu", "--db", "board.db")
    assert refused.code == 2
    assert "variant" in refused.err
    assert not (folder / "best.cu").exists()
    done = quick_evo("export", row, "-o", "best.cu", "--db", "board.db", "--trust-source")
    assert done.code == 0, done.err
    assert "offset *= 2) x += __shfl_xor_sync" in (folder / "best.cu").read_text()


def test_a_row_of_a_variant_is_compared_only_with_consent(evolved: Evolved, folder: Path) -> None:
    """Up to the GPU, which ``compare`` needs next."""
    row = evolved[1].json()["best"]["row_id"]
    with Leaderboard(folder / "board.db", create=False) as board:
        record = board.get(row)
    problem, info = record.study.key.problem, DeviceInfo("cuda", "NVIDIA L4", "sm_89", predicted=False)
    options = CompareOptions(db=str(folder / "board.db"))
    for reference in ("best", str(row)):
        with pytest.raises(UsageError, match=rf"row {row}\b.*variant.*--trust-source"):
            own_kernel(replace(options, row=reference), problem, info, get_target("l4"), "graph-warm")
    ours = own_kernel(replace(options, trust_source=True), problem, info, get_target("l4"), "graph-warm")
    assert isinstance(ours.load, KernelLoader)
    assert ours.load.kernel.source.text == record.evaluation.source
    assert ours.load.kernel.source.untrusted, "it is screened again"


def search_of(variant: str) -> tuple[str, ...]:
    """A search that goes on with the study of a variant, of which the evolution has tried one candidate."""
    return ("search", *EVOLVE[3:9], "--family", variant, "--budget", "2", "--db", "board.db", "--no-log")


def test_a_search_names_variants_only_with_consent(evolved: Evolved, folder: Path, quick_evo: Evo) -> None:
    refused = quick_evo(*search_of(evolved[1].json()["best"]["variant"]))
    assert refused.code == 2
    assert "--variants" in refused.err


@pytest.mark.thorough
def test_a_search_tunes_a_variant(evolved: Evolved, folder: Path, evo: Evo) -> None:
    best = evolved[1].json()["best"]
    done = evo(*search_of(best["variant"]), "--variants", "--json")
    assert done.code == 0, done.err
    result = done.json()
    assert (result["evaluated"], result["champion"]["family"]) == (2, best["variant"])
    assert result["champion"]["median_us"] <= best["best_us"]


def test_an_empty_leaderboard_and_wrong_options_have_one_line(quick_evo: Evo, tmp_path: Path) -> None:
    Leaderboard(tmp_path / "board.db").close()
    assert quick_evo("lineage", "--db", "board.db").code == 1
    for words in (
        ("--operator", "patches"),
        ("--operator", "none"),
        ("--family", "auto"),
        ("--device", "replay:x"),
        ("--patches", "nowhere"),
    ):
        done = quick_evo("evolve", "--device", "emulator", *words, "--db", "board.db")
        assert (done.code, len(done.err.strip().splitlines())) == (2, 1), (words, done.err)
