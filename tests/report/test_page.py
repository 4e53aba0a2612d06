"""Page of a study: contents, well-formed HTML, and escaping of all stored values."""

from __future__ import annotations

import cProfile
import dataclasses
import json
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from evoengine.engine.options.problem import ProblemOptions
from evoengine.errors import MissingDependencyError, StoreError
from evoengine.model import (
    Config,
    DType,
    Edit,
    HardwareProfile,
    KernelCounters,
    PartTime,
    Patch,
    Problem,
    Provenance,
    Status,
    Variant,
    Workload,
    WorkloadPart,
)
from evoengine.report.command import problem_options
from evoengine.report.counters import counters_table
from evoengine.report.facts import StudyFacts, gather, gather_all, newest_first, rejections
from evoengine.report.figure import log_axis
from evoengine.report.page import render_page, script_json
from evoengine.target import TARGETS
from tests.report.boards import BEST_US, EVIL, H200, L4, MISSION, evaluation, fill, key_of, open_board
from tests.report.parsed_page import Page, numbers


def facts_of(folder: Path, device: Any = H200, **options: Any) -> StudyFacts:
    with open_board(folder) as board:
        study = fill(board, device, **options)
        if not device.predicted:
            for row_id, energy in (
                (24, 900.0),
                (23, 800.0),
                (22, 850.0),
            ):  # 24 is fastest
                board.set_energy(row_id, energy)
        return gather(board, study.id)


def text_of(*studies: StudyFacts) -> str:
    return render_page(*studies, program="evoengine", written_at="now")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(text_of(facts_of(tmp_path_factory.mktemp("measured"))))


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(text_of(facts_of(tmp_path_factory.mktemp("predicted"), L4)))


def test_it_is_well_formed_without_external_references(measured: Page) -> None:
    ids = measured.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(measured.attributes("aria-labelledby")) <= set(ids)
    assert {f"study-1-{name}" for name in measured.plots()} <= set(ids)
    assert not measured.attributes("src")
    assert all(link.startswith("#") for link in measured.attributes("href"))
    assert any("default-src 'none'" in value for value in measured.attributes("content"))
    assert any("width=device-width" in value for value in measured.attributes("content"))


def test_every_plot_has_a_description(measured: Page) -> None:
    plots = [one.attrs for one in measured.root.all(kind="plot")]
    names = {"best-so-far", "importance-mma", "together-mma", "interaction-mma", "roofline", "energy"}
    assert {attrs["id"] for attrs in plots} == {f"study-1-{name}" for name in names}
    assert set(measured.plots()) == names
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 20 for attrs in plots)


def test_the_champion_and_its_history(measured: Page) -> None:
    champion = measured.section("champion").facts()
    assert numbers(champion["time per call"]) == [BEST_US, 95, 3.96, 4.04], "the time and its 95 % interval"
    assert champion["against SDPA"].startswith("cudnn")
    assert numbers(champion["against SDPA"]) == [9.0, 2.25]
    history = measured.section("history")
    ((_, rows), *_) = history.tables()
    assert [(row[1], row[3]) for row in rows] == [("row 1", "–"), ("row 24", "row 1")]
    assert numbers(rows[1][4]) == [50.0, 2, 48.0, 95], "gain in fresh pairs, and its lower bound"
    assert rows[1][5] == "family mma → wmma", "the previous champion is of another family"
    assert numbers(history.all("p")[0].text) == [1], "lost challenges"


def test_best_so_far_is_the_running_minimum(measured: Page) -> None:
    curve = next(trace for trace in measured.plots()["best-so-far"]["data"] if trace["name"] == "best so far")
    assert _numbers(curve["y"]) == [*(BEST_US + 0.5 * (23 - number) for number in range(24)), BEST_US]
    assert _numbers(curve["x"])[-1] == 28, "extends to the last candidate, although that was rejected"


def test_rejections_are_grouped_by_status_and_reason(tmp_path: Path) -> None:
    found = [(one.status, one.count, one.reason) for one in rejections(facts_of(tmp_path).rows)]
    assert found == [
        (Status.RESOURCE_LIMIT, 3, "needs N registers per thread, the device has N"),
        (Status.PARITY_FAILED, 1, EVIL),
    ]


def test_energy_has_a_section_only_if_measured(measured: Page, predicted: Page) -> None:
    front = next(trace for trace in measured.plots()["energy"]["data"] if trace["name"] == "best of both")
    assert list(zip(_numbers(front["x"]), _numbers(front["y"]), strict=True)) == [(4.0, 900.0), (4.5, 800.0)]
    assert "energy" not in predicted.plots()
    assert "energy" in measured.sections()
    assert "energy" not in predicted.sections()


def test_the_roofline_follows_the_data_sheet(measured: Page) -> None:
    traces = {trace["name"]: trace for trace in measured.plots()["roofline"]["data"]}
    flops, moved = 4 * 8 * 512 * 512 * 64, 4 * 8 * 512 * 64 * 2
    assert _numbers(traces["elites"]["y"])[0] == pytest.approx(flops / 4e-6 / 1e12)
    assert _numbers(traces["elites"]["x"])[0] == pytest.approx(flops / moved)
    dram = next(trace for name, trace in traces.items() if name.startswith("DRAM"))
    assert max(_numbers(dram["y"])) == pytest.approx(989.4, rel=0.01), "H200 SXM, dense fp16"
    x, y = _numbers(dram["x"])[0], _numbers(dram["y"])[0]
    assert y / x == pytest.approx(4.8, rel=0.01), "4.8 TB/s"


def test_hardware_counters_are_shown_with_the_roofline(tmp_path: Path, measured: Page, predicted: Page) -> None:
    assert any("--ncu" in one.text for one in measured.section("roof").all("code")), "the command that adds them"
    assert "--ncu" not in predicted.shown(), "needs a GPU"
    values = {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 81.0, "launch__registers_per_thread": 64.0}
    values["smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"] = 3.0
    values["smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"] = 1.0
    launch = KernelCounters("k", values, {})
    with open_board(tmp_path) as board:
        study = fill(board, H200)
        board.add_profile(
            24, HardwareProfile((launch,), "NVIDIA H200", "ncu 1.2", "c0de", datetime.fromisoformat("2026-01-02"))
        )
        facts = gather(board, study.id)
    (row,) = counters_table(facts).rows
    assert row[:-1] == ("1", "24", "memory-bound", "81 %", "–", "–", "–", "–", "–")
    assert "barrier" in row[-1]
    assert numbers(row[-1]) == [75]
    section = Page(text_of(facts)).section("roof")
    assert [*section.tables()[-1][1]] == [list(row)]
    assert all(name in section.text for name in ("ncu 1.2", "NVIDIA H200"))


def test_importance_is_reported_per_family(measured: Page) -> None:
    section = measured.section("matters")
    assert [heading.text.split(",")[0] for heading in section.all("h4")] == ["mma", "wmma"]
    assert [numbers(heading.text) for heading in section.all("h4")] == [[18], [6]], "correct rows"
    assert {"importance-mma", "interaction-mma", "together-mma"} <= set(measured.plots())
    assert "importance-wmma" not in measured.plots(), "too few rows"


def test_predictions_are_marked_everywhere(predicted: Page, measured: Page) -> None:
    shown = predicted.shown()
    assert [one.attrs["role"] for one in predicted.root.all(kind="notice") if "role" in one.attrs] == ["note"]
    for name in ("verdict", "progress", "champion", "elites", "roof"):
        assert "(predicted)" in predicted.section(name).all("h3")[0].text, name
    assert not re.search(r"µs(?! \(predicted\))", shown), "an unmarked time"
    for name, plot in predicted.plots().items():
        text = json.dumps(plot, ensure_ascii=False)
        assert not re.search(r"µs(?! \(predicted\))", text), name
    assert "predicted" not in measured.shown().lower()


def test_nothing_stored_becomes_markup(tmp_path: Path) -> None:
    text = text_of(facts_of(tmp_path))
    assert EVIL not in text
    assert "<img" not in text.split("<script>")[0]
    page = Page(text)
    assert EVIL in page.shown(), "shown as text"
    assert EVIL not in json.dumps(page.plots())


def test_data_cannot_end_its_script_element() -> None:
    document = {"a": [EVIL, "\u2028&amp;"]}
    text = script_json(document)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == document


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 8, 512, 64),
        Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096, causal=True, dtype=DType.BF16),
        Problem(1, 4, 256, 64, causal=True, window_left=128, sink=True),
        Problem(1, 4, 256, 64, window_left=None, window_right=7, softcap=50.0, lse=True),
        Problem(3, 4, 96, 64, lengths_q=(5, 96, 33), lengths_kv=(9, 40, 130), seq_kv=130),
    ],
    ids=lambda problem: problem.key,
)
def test_the_command_names_the_problem(problem: Problem) -> None:
    words = list(problem_options(problem))
    options: dict[str, Any] = {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        options[name] = True if not words or words[0].startswith("--") else words.pop(0)
    for name, kind in (("kv_heads", int), ("seq_kv", int), ("softcap", float)):
        if name in options:
            options[name] = kind(options[name])
    assert ProblemOptions(**options).build() == problem


def test_the_command_names_the_search(measured: Page, predicted: Page) -> None:
    command = command_of(measured)
    assert command[:2] == ["evoengine", "search"]
    given = dict(zip(command[2::2], command[3::2], strict=True))
    assert given["--seed"] == "7"
    assert given["--budget"] == "28"
    assert given["--family"] == "mma,wmma"
    assert given["--device"] == "cuda"
    other = command_of(predicted)
    assert other[other.index("--target") + 1] == "l4"


def command_of(page: Page) -> list[str]:
    return shlex.split(page.section("again").all("pre")[0].raw)


def test_an_empty_study_has_a_page(tmp_path: Path) -> None:
    with open_board(tmp_path) as board:
        with pytest.raises(StoreError, match=r"leaderboard\.db"):
            gather(board)
        study = fill(board, L4, rows=2)
        empty = board.open_study(dataclasses.replace(study.key, seed=99))
        with pytest.raises(StoreError, match=r"\b9\b.*\b1, 2\b"):
            gather(board, 9)
        page = Page(text_of(gather(board, empty.id)))
    assert numbers(page.section("verdict").facts()["candidates"]) == []
    assert not {"progress", "rejected"} & set(page.sections())
    assert "Candidates" not in page.tiles()


def test_without_plotly_the_message_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*plotly"):
        text_of(facts)


def _numbers(values: Any) -> list[float]:
    """Decodes a Plotly array: a list, or base64 of its bytes."""
    if isinstance(values, dict):
        import base64

        import numpy as np

        return [float(v) for v in np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])]
    return [float(value) for value in values]


def test_a_workload_shows_its_parts(tmp_path: Path) -> None:
    parts = (WorkloadPart(MISSION, 3.0), WorkloadPart(Problem(1, 8, 1024, 64), 1.0))
    workload = Workload("prefill", parts)
    times = tuple(
        PartTime(part.problem.key, part.weight / 4, us, us, us) for part, us in zip(parts, (4.0, 8.0), strict=True)
    )
    with open_board(tmp_path) as board:
        study = board.open_study(dataclasses.replace(key_of(H200), workload=workload))
        row = evaluation(1, 5.0)
        assert row.timing is not None
        row = dataclasses.replace(row, timing=dataclasses.replace(row.timing, parts=times), notes=("odd clocks",))
        board.record_challenge(study.scope, board.record(study, row), None, None)
        page = Page(text_of(gather(board, study.id)))
    title = page.root.all("h2")[0].text
    assert workload.key in title
    assert "NVIDIA H200" in title
    champion = page.section("champion").facts()
    assert [numbers(champion[f"on {part.problem.key}"]) for part in parts] == [[4.0, 75], [8.0, 25]]
    assert champion["note"] == "odd clocks"
    assert "roofline" not in page.plots(), "a mean over problems has no roofline"
    assert "--workload" in command_of(page)


def test_the_champion_has_its_lineage(tmp_path: Path, measured: Page) -> None:
    with open_board(tmp_path) as board:
        study = board.open_study(key_of(H200))
        first, second, third = evaluation(1, 6.0), evaluation(2, 5.0), evaluation(3, 4.0)
        for number, (row, descent) in enumerate(
            (
                (first, Provenance("start")),
                (second, Provenance("random sample")),
                (third, Provenance("crossover", (second.config.key, first.config.key))),
            )
        ):
            board.acquire_lease(study, row.config, 10, number, descent)
            last = board.record(study, row, number)
        board.record_challenge(study.scope, last, None, None)
        champions, lineage = Page(text_of(gather(board, study.id))).section("history").tables()
    assert len(champions[1]) == 1
    child, *parents = lineage[1]
    assert child[:3] == ["row 3", "0", "4.000"]
    assert numbers(child[3]) == [2, 1], "the parents"
    assert child[4].startswith("BLOCK_N 128 → 32; EPILOGUE direct → ")
    assert sorted(parents, reverse=True) == [
        ["row 2", "1", "5.000", "random sample", "–"],
        ["row 1", "1", "6.000", "start", "–"],
    ]
    assert len(measured.section("history").tables()) == 1, "not recorded by this search"


def test_pruned_rows_have_their_own_trace_and_count_for_importance(tmp_path: Path) -> None:
    with open_board(tmp_path) as board:
        study = fill(board, H200)
        for number in range(3):
            row = evaluation(200 + number, 40.0 + number)
            board.record(study, dataclasses.replace(row, status=Status.PRUNED, reason="at least 100% slower"))
        page = Page(text_of(gather(board, study.id)))
    plots = page.plots()
    traces = {trace["name"]: trace for trace in plots["best-so-far"]["data"]}
    assert [40.0, 41.0, 42.0] in [_numbers(trace["y"]) for trace in traces.values()]
    assert 40.0 not in _numbers(traces["mma"]["y"])
    axis = plots["best-so-far"]["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert dict(zip(axis["ticktext"], axis["tickvals"], strict=True)) == {
        text: float(text) for text in ("1", "2", "5", "10", "20", "50", "100", "200", "500")
    }
    assert numbers(page.section("matters").all("h4")[0].text) == [21]


def test_elites_show_differences_to_the_first(measured: Page) -> None:
    ((_, rows),) = measured.section("elites").tables()
    configs = {row[1]: row[-1] for row in rows}
    assert configs["24"].startswith("BLOCK_N=128 EPILOGUE="), "rank 1 in full"
    assert "BLOCK_N 128 → 64" in configs["20"], "the next of its family"
    assert "N 23 → 19" in configs["20"]
    assert "N=22" in configs["23"], "of another family in full"


def test_the_summary_names_the_champion(measured: Page, predicted: Page) -> None:
    for page, marked, found in ((measured, False, [24, BEST_US, 2.25]), (predicted, True, [24, BEST_US])):
        champion = page.section("verdict").facts()["champion"]
        assert numbers(champion) == found, "row, time, speed-up"
        assert "wmma" in champion
        assert ("(predicted)" in champion) is marked


def test_several_studies_share_a_page_with_a_chooser(tmp_path: Path, measured: Page) -> None:
    with open_board(tmp_path) as board:
        old, new = fill(board, H200), fill(board, L4, problem=Problem(1, 4, 64, 64))
        assert [study.id for study in newest_first(board)] == [new.id, old.id]
        board.record(old, evaluation(900, 99.0))
        assert [study.id for study in newest_first(board)] == [old.id, new.id], "the study with the newest row is first"
        page = Page(text_of(*(gather(board, study.id) for study in newest_first(board))))
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    studies = [one.attrs for one in page.root.all("article")]
    assert [(one["id"], one.get("class")) for one in studies] == [("study-1", "shown"), ("study-2", None)]
    options = page.root.all("option")
    assert [one.attrs["value"] for one in options] == [one["id"] for one in studies]
    for option, words in zip(
        options,
        (("1x8x512x64-fp16", "NVIDIA H200", "4.000 µs", "29 candidates"), ("1x4x64x64-fp16", "4.000 µs (predicted)")),
        strict=True,
    ):
        assert all(word in option.text for word in words)
    links = [one.attrs["href"] for one in page.root.all("a")]
    assert links[1:] == ["#study-1", "#study-2"], "a page without scripts has links"
    notices = [len(one.all(kind="notice")) for one in page.root.all("article")]
    assert notices == [0, 1], "only the predicted study"
    assert not measured.root.all("select"), "nothing to choose"


def test_a_page_of_many_studies_decodes_each_study_and_variant_once(tmp_path: Path) -> None:
    """A page of 600 studies took two minutes, most of them for the studies of all others."""
    with open_board(tmp_path) as board:
        for seed in range(12):
            board.open_study(key_of(H200, seed=seed))
        for number in range(5):
            patch = Patch((Edit("mma/kernel.cu.jinja", f"a{number}", "b"),))
            board.variants.add(Variant("mma", patch), "random", ("mma",))
        profile = cProfile.Profile()
        facts = profile.runcall(lambda: gather_all(board, newest_first(board)))
    calls = {entry.code.co_name: entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str)}
    assert [len(list(one.variants[0].walk())) for one in facts] == [6] * 12
    assert (calls["study_from"], calls["_variant"]) == (12, 5)


def test_the_verdict_gives_time_gain_and_share_of_the_roofline(measured: Page, predicted: Page) -> None:
    assert "NVIDIA H200" in measured.root.all(kind="badge")[0].text
    tiles = measured.tiles()
    assert tiles["Champion"] == (f"{BEST_US:.3f} µs", [95, 3.96, 4.04, 24])
    assert tiles["Against SDPA"] == ("2.25×", [9.0])
    needed_us = 4 * 8 * 512 * 512 * 64 / 989.4e6
    share, facts = tiles["Roofline"]
    assert (share, facts[0]) == (f"{needed_us / BEST_US:.0%}", 989.4)
    value, counts = tiles["Candidates"]
    assert (int(value), counts) == (28, [24, 4])
    guess = predicted.tiles()
    assert "Against SDPA" not in guess
    first_us = BEST_US + 0.5 * 23
    assert guess["Against the start"] == (f"{first_us / BEST_US:.2f}×", [first_us])


def test_a_memory_bound_problem_is_compared_with_the_rate_of_dram(tmp_path: Path) -> None:
    decode = Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096)
    moved = 2 * (2 * 8 * 32 * 1 * 128 + 2 * 8 * 8 * 4096 * 128)
    page = Page(text_of(facts_of(tmp_path, problem=decode)))
    share, facts = page.tiles()["Roofline"]
    assert (share, facts[0]) == (f"{moved / (BEST_US * 4.8e6):.0%}", 4800)
    assert numbers(page.root.all(kind="subtitle")[0].text) == [8, 32, 8, 1, 4096, 128]


def test_a_problem_without_visible_pairs_has_no_roofline(tmp_path: Path) -> None:
    unseen = Problem(2, 1, 64, 64, lengths_q=(64, 0), lengths_kv=(0, 64))
    page = Page(text_of(facts_of(tmp_path, problem=unseen)))
    assert "roofline" not in page.plots()
    assert page.tiles()["Champion"][0] == f"{BEST_US:.3f} µs"
    assert "Roofline" not in page.tiles()


def test_an_axis_ends_at_the_largest_number(tmp_path: Path) -> None:
    with open_board(tmp_path) as board:
        study = fill(board, H200)
        board.record(study, evaluation(500, 1.7e308))
        ticks = Page(text_of(gather(board, study.id))).plots()["best-so-far"]["layout"]["yaxis"]["tickvals"]
    assert max(ticks) == 1e308
    assert max(log_axis("", 1e307, 1.7e308)["tickvals"]) == 1e308


def test_the_roofline_states_its_peaks_and_their_source(measured: Page) -> None:
    peaks = measured.section("roof").facts()
    assert peaks["tensor cores"].startswith("989.4 TFLOP/s")
    assert peaks["DRAM"] == "4800 GB/s"
    assert numbers(peaks["mma.sync"]) == [623, 63], "TFLOP/s, and its share of the peak in percent"
    assert peaks["source"] == TARGETS["h200"].source


def test_stars_name_the_changes_of_the_champions(measured: Page) -> None:
    stars = next(trace for trace in measured.plots()["best-so-far"]["data"] if trace["name"] == "champion")
    assert list(zip(_numbers(stars["x"]), _numbers(stars["y"]), strict=True)) == [(1, 15.5), (24, BEST_US)]
    assert stars["text"] == ["<b>1</b>", "<b>2</b>"]
    first, second = stars["hovertext"]
    assert numbers(first.replace("<b>", "")) == [1, 1, 15.5], "number, row, time"
    head, changed = second.split("<br>")
    assert numbers(head) == [2, 24, 4.0]
    assert changed == "family mma → wmma"


def test_a_row_that_ranks_before_the_champion_is_named(tmp_path: Path, measured: Page) -> None:
    with open_board(tmp_path) as board:
        study = fill(board, H200)
        row = board.record(study, evaluation(500, 3.95))
        facts = Page(text_of(gather(board, study.id))).section("verdict").facts()
    assert numbers(facts["first rank"]) == [row, 3.95]
    assert "first rank" not in measured.section("verdict").facts()


def test_parallel_coordinates_place_each_row_in_the_band_of_its_value(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, rows=60)
    plot = Page(text_of(facts)).plots()["together-mma"]
    names = plot["layout"]["xaxis"]["ticktext"]
    assert names[0] == "time"
    assert set(names[1:]) <= {"BLOCK_N", "STAGES", "EPILOGUE", "N"}
    fastest = sorted((row for row in facts.timed if row.family == "mma"), key=lambda row: row.median_us or 0.0)
    assert len(plot["data"]) == 3, "the fastest row, the next ranks, the others"
    lines = [line for trace in reversed(plot["data"]) for line in _lines_of(trace, len(names))]
    assert len(lines) == 22, "half of the 45 rows of the family"
    shown = fastest[: len(lines)]
    assert len({tuple(line) for line in lines}) == len(lines)
    times = [line[0] for line in lines]
    assert min(times) == times[0] == 0.0, "the fastest row is at the bottom"
    assert max(times) == 1.0
    for column, name in enumerate(names[1:], 1):
        values = sorted({row.config[name] for row in shown}, key=lambda value: (isinstance(value, str), value))
        bands = {int(line[column] * len(values)) for line in lines}
        assert bands == set(range(len(values)))
        for line, row in zip(lines, shown, strict=True):
            assert values[int(line[column] * len(values))] == row.config[name], name


def _lines_of(trace: Any, width: int) -> list[list[float]]:
    """Splits a trace at its gaps."""
    y = trace["y"]
    assert trace["x"] == [*range(width), None] * (len(y) // (width + 1))
    return [y[start : start + width] for start in range(0, len(y), width + 1)]


def test_statuses_and_reasons_have_bars_of_their_share(measured: Page) -> None:
    statuses, reasons = measured.section("rejected").tables()
    assert [row[1] for row in statuses[1]] == ["24", "3", "1"]
    assert [numbers(row[2]) for row in statuses[1]] == [[85.7], [10.7], [3.6]]
    assert [row[0].split()[0] for row in statuses[1]] == ["ok", "resource_limit", "parity_failed"]
    assert [(row[0].split()[0], row[1]) for row in reasons[1]] == [("resource_limit", "3"), ("parity_failed", "1")]
    assert "row 25" in reasons[1][0][0], "an example"
    widths = [value for value in measured.attributes("style") if value.startswith("width")]
    assert widths == [f"width: {100 * count / 28:.2f}%" for count in (24, 3, 1, 3, 1)]


def test_names_of_tunables_are_escaped_in_plots(tmp_path: Path) -> None:
    with open_board(tmp_path) as board:
        study = board.open_study(key_of(H200))
        for number in range(20):
            row = evaluation(number, 4.0 + number)
            values = {**row.config.as_dict(), EVIL: number % 4, "<b>bold</b>": number % 5}
            board.record(study, dataclasses.replace(row, config=Config.of("mma", values)), number)
        page = Page(text_of(gather(board, study.id)))
    plots = json.dumps(page.plots())
    assert "&lt;b&gt;bold" in plots
    assert EVIL not in plots
    assert "<b>bold" not in plots
