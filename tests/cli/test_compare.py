"""``compare`` from the command line: errors without a GPU, the choice of the row, and the whole verb on a GPU."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from evoengine.bench.compare_result import Comparison, Finding, PeerStatus, make_rows
from evoengine.cli.verbs.compare import print_comparison
from evoengine.engine.compare import compared_record
from evoengine.engine.devices.gpus import find_gpu
from evoengine.engine.options.verbs import CompareOptions
from evoengine.engine.rows.kernels import build_for
from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo, parse_problem
from evoengine.parity.compare import judge
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.target import get_target
from tests.cli.calling import Evo
from tests.report.boards import H200 as H200_GPU
from tests.report.boards import L4, MISSION, evaluation, key_of

H200 = "NVIDIA H200"
TINY = parse_problem("tiny")
SMALL = parse_problem("1x1x16x16")

without_gpu = pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--peers", "sdpa,voodoo"), "unknown peer 'voodoo'"),
        (("--peers", ","), "triton-fa2"),
        (("--problem", "huge"), "1x8x512x64"),
        (("--dtype", "fp8"), "bf16"),
        (("--kv-heads", "3"), "kv_heads"),
        (("--samples", "2"), "--samples"),
        (("--calls", "0"), "--calls"),
        (("--markdown", "missing/page.md"), "missing"),
        pytest.param((), "nvidia-smi", marks=without_gpu),
        pytest.param(("--json", "--markdown", "page.md"), "leaderboard", marks=without_gpu),
    ],
)
def test_errors_are_one_line(quick_evo: Evo, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = quick_evo("compare", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert done.err.startswith("error: ")
    assert says in done.err
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Stored:
    """Row of a leaderboard: device, way of timing, time, and whether it is champion."""

    device: DeviceInfo
    method: str
    median_us: float
    champion: bool = False


MEASURED_L4 = DeviceInfo("cuda", "NVIDIA L4", "sm_89", False)
BY_MERIT = (
    Stored(H200_GPU, "graph-warm", 4.1, champion=True),
    Stored(H200_GPU, "graph-warm", 4.0),
    Stored(H200_GPU, "graph-cold", 3.0, champion=True),
    Stored(MEASURED_L4, "graph-warm", 2.0, champion=True),
    Stored(MEASURED_L4, "graph-warm", 9.0),
    Stored(L4, "model-v1", 1.0, champion=True),
)
PREDICTIONS = (Stored(L4, "model-v1", 14.41), Stored(L4, "model-v1", 14.71, champion=True))


@pytest.mark.parametrize("rows", [*(BY_MERIT[first:] for first in range(len(BY_MERIT))), PREDICTIONS], ids=len)
def test_the_row_of_most_merit_is_compared(rows: Sequence[Stored], tmp_path: Path) -> None:
    """The champion of this GPU, then rows of this GPU, of others, and the fastest prediction, champion or not."""
    with Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}") as board:
        for number, one in reversed(list(enumerate(rows))):
            study = board.open_study(replace(key_of(one.device), method=one.method))
            made = evaluation(number, one.median_us, predicted=one.device.predicted)
            assert made.timing is not None
            made = replace(made, timing=replace(made.timing, method=one.method))
            row_id = board.record(study, made)
            if one.champion:
                board.record_challenge(study.scope, row_id, None, None)
    record = compared_record(CompareOptions(db=str(tmp_path / "leaderboard.db")), MISSION, H200, "graph-warm")
    assert record is not None
    assert record.row.config["N"] == 0


@pytest.mark.slow
def test_a_row_of_the_leaderboard_is_built_for_this_device(small: Path, tmp_path: Path) -> None:
    db = str(shutil.copy(small / "leaderboard.db", tmp_path))
    device = open_device(DeviceSpec("emulator"))
    here = device.info.name, "graph-warm"
    record = compared_record(CompareOptions(db=db), SMALL, *here)
    assert record is not None
    case = problem_case(SMALL, 9)
    loaded = device.load(build_for(record, SMALL, device.target, device.info.arch))
    assert judge(case, loaded.attention(case.inputs)).reason == ""
    for reference in ("best", "rank:1", str(record.row.id)):
        same = compared_record(CompareOptions(db=db, row=reference), SMALL, *here)
        assert same is not None
        assert same.row.id == record.row.id
    mission = parse_problem("mission")
    assert compared_record(CompareOptions(db=db), mission, *here) is None
    assert compared_record(CompareOptions(db=str(tmp_path / "none.db")), SMALL, *here) is None
    for request, problem, says in (
        (CompareOptions(db=db, row=str(record.row.id)), mission, SMALL.key),
        (CompareOptions(db=db, row="999"), SMALL, "no row 999"),
        (CompareOptions(db=db, row="first"), SMALL, "rank:N"),
        (CompareOptions(db=str(tmp_path / "none.db"), row="1"), SMALL, "none.db"),
    ):
        with pytest.raises(UsageError, match=says):
            compared_record(request, problem, *here)
    device.close()


def test_the_table_shows_every_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    found = (
        Finding("evoengine", PeerStatus.OK, "row 7", (4.0,) * 9, 1e-4, 9.0, ours=True),
        Finding("sdpa", PeerStatus.OK, "", (8.0,) * 9, 1e-4, 40.0),
        Finding("flex", PeerStatus.FAILED, "TypeError: bad [/red] list[int]"),
    )
    rows = make_rows(found, TINY, get_target("h200"))
    print_comparison(Comparison(TINY.key, H200, (("torch", "2.11"),), "graph-warm", 20, 9, 1e-3, 0.5, rows))
    out = capsys.readouterr().out
    assert TINY.key in out
    assert "2.00x" in out
    assert "bad [/red] list[int]" in out
    assert re.search(r"\bours .*0\.500", out)


@pytest.mark.gpu
def test_compare_on_a_gpu(evo: Evo, tmp_path: Path) -> None:
    search = ("search", "--problem", "tiny", "--strategy", "random", "--budget", "2", "--quiet", "--no-sanitizer")
    assert evo(*search).code == 0
    common = ("compare", "--problem", "tiny", "--peers", "sdpa,sdpa-math,flash-attn-3", "--samples", "6")
    done = evo(*common, "--json", "--markdown", "page.md")
    assert done.code == 0, done
    document = done.json()
    by_name = {line["name"]: line for line in document["rows"]}
    assert by_name["evoengine"]["outcome"] == "ok"
    assert by_name["sdpa"]["outcome"] == "ok"
    assert by_name["sdpa"]["ratio_to_ours"] > 0
    assert document["best_peer"] in {"sdpa", "sdpa-math", "flash-attn-3"}
    assert "| **evoengine** |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    cold = evo(*common, "--cold-l2", "--db", "none.db")
    assert cold.code == 0, cold
    assert "search" in cold.out
