"""Models: recorded calls of attention, the division of a budget, shared kernels, the lockfile, and the whole."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_name

import evoengine
from evoengine.api.call_recording import RecordedCall
from evoengine.api.lockfile import read_lockfile
from evoengine.api.model_file import load_model
from evoengine.api.model_tuning import MIN_CANDIDATES, TunedProblem, lock_model, planned
from evoengine.api.selection import Selection, Selector
from evoengine.errors import NothingFoundError, UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.model import Problem
from tests.api.boards import GPU, H200, MISSION, Entry, mma, store
from tests.cli.calling import ROOT, Evo
from tests.cli.conftest import cache, evo, evo_in, quick_evo

__all__ = ["cache", "evo", "evo_in", "quick_evo"]

EXAMPLES = ROOT / "docs" / "examples" / "models"
HALF = torch.float16


def draw(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def counts(recorded: evoengine.RecordedCalls) -> dict[str, int]:
    """Number of calls by name and reason."""
    return {f"{call.what}{': ' * bool(call.reason)}{call.reason}": call.count for call in recorded.calls}


class Attends(nn.Module):
    """SDPA through the module that defines it."""

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.inference_mode():
        yield


def test_eager_calls_are_recorded_however_they_are_made() -> None:
    q, p = draw(1, 2, 16, 32), draw(16, 2, 32)
    starts = torch.tensor([0, 10, 16], dtype=torch.int32)
    with evoengine.record_attention() as recorded:
        Attends()(q)
        imported_name(q, q, q, is_causal=True)
        for _ in range(3):
            evoengine.attention(q, q, q, causal=True)
        torch.ops.evoengine.attention_qkv(q, q, q, True)
        evoengine.attention(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2), layout="bshd", window=(4, 0))
        evoengine.attention(p, p, p, cu_seqlens_q=starts, cu_seqlens_kv=starts)
    assert counts(recorded) == {
        "1x2x16x32-fp16-causal": 6,
        "1x2x16x32-fp16-causal-left4": 1,
        "2x2x10x32-packed10.6-fp16": 1,
    }
    assert all(call.median_us is not None and call.median_us > 0 for call in recorded.calls)
    Attends()(q)
    evoengine.attention(q, q, q, causal=True)
    assert sum(call.count for call in recorded.calls) == 8, "nothing is recorded after the block"
    assert functional.scaled_dot_product_attention is imported_name


def test_calls_that_no_kernel_can_serve_have_a_reason() -> None:
    q, mask = draw(1, 2, 16, 32), torch.ones(16, 16, dtype=torch.bool)
    with evoengine.record_attention() as recorded:
        imported_name(q, q, q, mask)
        evoengine.attention(q, q, q, mask)
        imported_name(q.float(), q.float(), q.float())
        imported_name(q[0], q[0], q[0])
        with torch.inference_mode(mode=False):
            trained = draw(1, 2, 16, 32).requires_grad_()
            imported_name(trained, trained, trained)
            evoengine.attention(trained, trained, trained)
    wanted = {
        "1x2x16x32 float16: .*attn_mask": 2,
        "1x2x16x32 float32: .*float32": 1,
        r"2x16x32 float16: .*\(2, 16, 32\)": 1,
        "1x2x16x32 float16: .*gradient": 2,
    }
    found = counts(recorded)
    assert len(found) == len(wanted)
    for pattern, count in wanted.items():
        assert [found[name] for name in found if re.match(pattern, name)] == [count], pattern


@pytest.mark.slow
def test_compiled_programs_and_fused_encoder_layers_are_recorded() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(HALF).eval()
    x, q = draw(1, 16, 64), draw(1, 2, 24, 32)
    compiled = torch.compile(Attends(), backend="aot_eager")
    want = encoder(x), compiled(q)
    with evoengine.record_attention() as recorded:
        got = encoder(x), compiled(q)
    assert counts(recorded) == {"1x2x16x32-fp16": 2, "1x2x24x32-fp16-causal": 1}
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.slow
def test_sdpa_is_replaced_in_eager_and_compiled_programs() -> None:
    programs: list[str] = []

    def seen(module: Any, _example: Any) -> Any:
        programs.append(module.code)
        return module

    class Named(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return imported_name(q, q, q, is_causal=True) + imported_name(q[0], q[0], q[0])

    q = draw(1, 2, 16, 32)
    want = Named()(q)
    with evoengine.replace_sdpa(), evoengine.record_attention() as recorded:
        torch.testing.assert_close(Named()(q), want)
    assert counts(recorded)["1x2x16x32-fp16-causal"] == 1
    with evoengine.replace_sdpa():
        torch.testing.assert_close(torch.compile(Named(), backend=seen, fullgraph=True)(q), want)
    assert sum(program.count("evoengine.attention") for program in programs) == 1
    assert "scaled_dot_product" in programs[0], "the call without a heads axis"


def call(count: int, median_us: float | None, problem: Problem | None = MISSION, reason: str = "") -> RecordedCall:
    return RecordedCall(problem.key if problem else "other", problem, reason, -1, count, median_us)


def test_a_budget_is_divided_by_the_share_of_time() -> None:
    longer = replace(MISSION, seq_q=1024, seq_kv=1024)
    short = replace(MISSION, seq_q=64, seq_kv=64)
    calls = [call(12, 10.0), call(1, 360.0, longer), call(5, 1e6, None, "a mask"), call(1, 0.0, short)]
    plan = planned(calls, 400)
    assert MIN_CANDIDATES == 20
    assert [(item.call.problem, item.share, item.candidates) for item in plan] == [
        (longer, 0.75, 20 + 255),
        (MISSION, 0.25, 20 + 85),
        (short, 0.0, 20),
    ]
    assert [[item.candidates for item in planned(calls, budget)] for budget in (59, 39, 5, 0)] == [
        [34, 24, 0],
        [39, 0, 0],
        [5, 0, 0],
        [0, 0, 0],
    ]
    captured = planned([call(3, None), call(1, None, longer)], 100)
    assert [(item.share, item.candidates) for item in captured] == [(0.75, 20 + 45), (0.25, 20 + 15)]


def tuned(*problems: Problem) -> list[TunedProblem]:
    return [TunedProblem(replace(call(1, 1.0, problem), device=0), 1 / len(problems), 100) for problem in problems]


@pytest.mark.parametrize(("shared_us", "shares"), [(5.14, True), (5.16, False)])
def test_near_problems_share_a_kernel_that_costs_little(tmp_path: Path, shared_us: float, shares: bool) -> None:
    near = replace(MISSION, seq_q=640, seq_kv=640)
    first, second = mma(), mma({"BLOCK_N": 16})
    entries = [
        Entry(MISSION, first, 4.0),
        Entry(near, second, 5.0),
        Entry(near, first, shared_us, crowned=False),
    ]
    ids = store(tmp_path / "board.db", default_cache_dir(), *entries)
    lockfile = tmp_path / "evoengine.lock"
    done = lock_model(tuned(MISSION, near), str(tmp_path / "board.db"), lockfile, {0: GPU})
    assert [item.row_id for item in done] == [ids[0], ids[2 if shares else 1]]
    assert done[1].shared_with == (MISSION.key if shares else "")
    assert done[1].sharing_cost == pytest.approx(shared_us / 5 - 1 if shares else 0)
    rows = read_lockfile(lockfile)
    assert len({row.code_hash for row in rows}) == (1 if shares else 2)
    found = Selector(GPU, H200, rows, locked=True).select(near)
    assert isinstance(found, Selection)
    assert found.exact
    assert found.kernel.source.config == (first if shares else second)


def test_problems_without_a_measured_kernel_are_not_locked(tmp_path: Path) -> None:
    other = replace(MISSION, seq_q=640, seq_kv=640)
    store(tmp_path / "board.db", default_cache_dir(), Entry(MISSION, mma()), Entry(other, mma(), predicted=True))
    done = lock_model(tuned(MISSION, other), str(tmp_path / "board.db"), tmp_path / "a.lock", {0: GPU})
    assert [item.row_id is None for item in done] == [False, True]
    assert [row.problem for row in read_lockfile(tmp_path / "a.lock")] == [MISSION]
    with pytest.raises(NothingFoundError, match="measured"):
        lock_model(tuned(other), str(tmp_path / "board.db"), tmp_path / "b.lock", {0: GPU})
    assert not (tmp_path / "b.lock").exists()


@pytest.mark.parametrize(
    ("example", "calls"),
    [
        ("vit", {"1x2x17x32-fp16": 1}),
        ("transformer_encoder", {"1x2x24x32-fp16": 1}),
        ("llama_block", {"1x2x24x32-kv1-bf16-causal": 1, "1x2x1x32-kv1-skv25-bf16": 1}),
    ],
)
def test_examples_make_calls_that_kernels_serve(example: str, calls: dict[str, int]) -> None:
    if torch.cuda.is_available():
        pytest.skip("the examples are larger on a GPU")
    model, inputs = load_model(EXAMPLES / f"{example}.py")
    want = model(*inputs)
    with evoengine.record_attention() as recorded:
        model(*inputs)
    assert counts(recorded) == calls
    with evoengine.replace_sdpa():
        torch.testing.assert_close(model(*inputs), want, rtol=2e-2, atol=2e-2)


def test_a_model_without_calls_for_kernels_is_refused(tmp_path: Path) -> None:
    lockfile = str(tmp_path / "a.lock")
    with pytest.raises(NothingFoundError, match="it makes none"):
        evoengine.tune_model(nn.Linear(4, 4), torch.zeros(1, 4), lockfile=lockfile)
    with pytest.raises(NothingFoundError, match=r"not torch\.float32"):
        evoengine.tune_model(Attends(), draw(1, 2, 16, 32, dtype=torch.float32), lockfile=lockfile)
    with pytest.raises(UsageError, match=r"ends in \.lock"):
        evoengine.tune_model(Attends(), draw(1, 2, 16, 32), lockfile="kernels.json")


def test_a_problem_is_not_searched_for_lack_of_budget_or_of_time(tmp_path: Path) -> None:
    def model(q: torch.Tensor, longer: torch.Tensor) -> None:
        for one in (q, longer):
            functional.scaled_dot_product_attention(one, one, one)

    with pytest.warns(RuntimeWarning, match="predictions"):
        done = evoengine.tune_model(
            *(model, draw(1, 2, 16, 32), draw(1, 2, 512, 32)),
            budget=20,
            time_limit_s=1e-9,
            leaderboard=str(tmp_path / "a.db"),
            lockfile="a.lock",
        )
    found = [(item.candidates, "time limit" in item.reason) for item in done.problems]
    assert sorted(found) == [(0, False), (0, True)], "one of them gets all 20 candidates, and no time"


@pytest.mark.slow
def test_a_model_is_searched_on_the_emulator(evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\nfrom torch.nn import functional\n"
        "def model(q):\n    return functional.scaled_dot_product_attention(q, q, q)\n"
        "def build():\n    return model, (torch.ones(1, 1, 16, 16, dtype=torch.float16),)\n"
    )
    done = evo("tune-model", "m.py", "--budget", "1", "--db", "model.db", "-o", "model.lock", "--json", "--quiet")
    assert done.code == 0, done.err
    assert done.err.startswith("warning: ")
    assert "CPU" in done.err
    assert done.err.count("\n") == 1
    document = done.json()
    [item] = document["problems"]
    assert (item["call"], item["count"], item["share"], item["candidates"]) == ("1x1x16x16-fp16", 1, 1.0, 1)
    assert item["median_us"] > 0
    assert (document["predicted"], document["lockfile"], document["times"]) == (True, "", [])
    assert not (tmp_path / "model.lock").exists(), "predictions are not locked"
    stored = evo("leaderboard", "--db", "model.db", "--json").json()
    assert [row["id"] for row in stored].count(item["row_id"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "needs a function build"),
        ("def build():\n    return 3", "must|needs"),
        ("def build():\n    raise KeyError('k')", "KeyError: 'k'"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def build(:", "SyntaxError"),
    ],
)
def test_a_file_that_defines_no_model_is_one_line(quick_evo: Evo, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.py").write_text(text)
    done = quick_evo("tune-model", "m.py")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    with pytest.raises(UsageError, match=message):
        load_model(tmp_path / "m.py")
    with pytest.raises(UsageError, match=r"\.py"):
        load_model(tmp_path / "missing.py")


def test_the_verb_lists_calls(quick_evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SHAPE = 1, 2, 16, 32\n")
    (tmp_path / "m.py").write_text(
        "import torch\nfrom helper import SHAPE\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def model(q):\n    print('from the model')\n    return sdpa(q, q, q) + sdpa(q, q, q, q[0, 0] @ q[0, 0].T)\n"
        "def build():\n    return model, (torch.zeros(SHAPE, dtype=torch.float16),)\n"
    )
    done = quick_evo("tune-model", "m.py", "--record-only", "--json")
    assert done.code == 0, done.err
    document = done.json()
    assert [(one["call"], one["count"], one["share"]) for one in document["problems"]] == [("1x2x16x32-fp16", 1, 1.0)]
    (refused,) = document["refused"]
    assert refused["call"] == "1x2x16x32 float16"
    assert "attn_mask" in refused["reason"]
    assert "from the model" in done.err
    done = quick_evo("tune-model", "m.py", "--record-only")
    assert "1x2x16x32-fp16      1  100.0%" in done.out
    assert re.search(r"\b1 call of 1x2x16x32 float16: .*attn_mask", done.out)
    assert json.dumps(document)


@pytest.mark.gpu
def test_calls_of_a_captured_graph_have_no_time() -> None:
    q, graph = draw(1, 2, 16, 32).cuda(), torch.cuda.CUDAGraph()
    Attends()(q)
    with evoengine.record_attention() as recorded, torch.cuda.graph(graph):
        Attends()(q)
    assert [(call.what, call.count, call.median_us, call.total_us) for call in recorded.calls] == [
        ("1x2x16x32-fp16-causal", 1, None, 0.0)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("example", ["vit", "transformer_encoder", "llama_block"])
def test_an_example_is_tuned_on_a_gpu(tmp_path: Path, example: str) -> None:
    model, inputs = load_model(EXAMPLES / f"{example}.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.compile
        done = evoengine.tune_model(
            model,
            *inputs,
            budget=60,
            leaderboard=str(tmp_path / "model.db"),
            lockfile=str(tmp_path / "model.lock"),
            quiet=True,
        )
    assert not done.predicted
    assert {row.problem.key for row in read_lockfile(tmp_path / "model.lock")} == {
        item.call.what for item in done.problems if item.row_id is not None
    }
    assert [times.way for times in done.times] == ["eager", "graph", "compiled", "compiled graph"]
    for times in done.times:
        assert times.gain is not None, times.reason
        assert times.largest_difference is not None
        assert times.largest_difference < 0.2
