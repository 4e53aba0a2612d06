"""Python API on a GPU with real kernels: eager, captured in graphs, compiled, on streams, from threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import evoengine
from evoengine.api.calls import plan_of
from evoengine.cli.verbs.export import run_export
from evoengine.engine.options.verbs import ExportOptions
from evoengine.model import DType, Problem
from evoengine.runtime.call import Options
from evoengine.runtime.torch_fallback import torch_attention
from tests.api.boards import MISSION, Entry, mma, store

pytestmark = pytest.mark.gpu

LONGER = replace(MISSION, seq_q=700, seq_kv=700)
DECODE = Problem(4, 8, 1, 64, kv_heads=2, seq_kv=1024)
RICH = replace(MISSION, window_left=100, causal=True, softcap=20.0, sink=True, lse=True)
PACKED = replace(MISSION, batch=3, lengths_q=(512, 100, 300), lengths_kv=(512, 100, 300))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Leaderboard with champions for the GPU of this machine."""
    folder = tmp_path_factory.mktemp("board")
    major, minor = torch.cuda.get_device_capability()
    here: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "arch": f"sm_{major}{minor}"}
    entries: list[Entry] = [
        Entry(MISSION, mma(), **here),
        Entry(RICH, mma(), **here),
        Entry(PACKED, mma(), **here),
        Entry(DECODE, mma({"SPLITS": 4, "PACK_GQA": True, "WARPS_M": 1}), **here),
        Entry(replace(DECODE, dtype=DType.BF16), mma({"SPLITS": 4, "COMBINE": "kernel", "WARPS_M": 1}), **here),
    ]
    store(folder / "leaderboard.db", folder / "cache", *entries)
    return folder / "leaderboard.db"


@pytest.fixture(autouse=True)
def _use(board: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOENGINE_LEADERBOARD", str(board))
    evoengine.forget()
    yield
    torch.cuda.synchronize()
    evoengine.forget()


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def inputs_of(problem: Problem, seed: int = 0) -> list[torch.Tensor]:
    dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    q = draw(problem.batch, problem.heads, problem.seq_q, problem.head_dim, seed=seed, dtype=dtype)
    kv = problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim
    return [q, draw(*kv, seed=seed + 1, dtype=dtype), draw(*kv, seed=seed + 2, dtype=dtype)]


def assert_right(o: torch.Tensor, tensors: list[torch.Tensor], options: Options | None = None, *others: Any) -> None:
    q, k, v = tensors
    exact, _ = torch_attention(options or Options(), q.float(), k.float(), v.float(), *others)
    step = 2e-3 if o.dtype is torch.float16 else 1.6e-2
    torch.testing.assert_close(o.float(), exact, rtol=4 * step, atol=step)


@pytest.mark.parametrize("problem", [MISSION, DECODE, replace(DECODE, dtype=DType.BF16)], ids=lambda p: p.key)
def test_the_champion_computes_its_problem(problem: Problem) -> None:
    tensors = inputs_of(problem)
    said = evoengine.explain(*tensors)
    assert (said.server, said.problem, said.device) == ("champion", problem.key, torch.cuda.get_device_name())
    for _ in range(3):
        assert_right(evoengine.attention(*tensors, fallback=False), tensors)


def test_every_feature() -> None:
    tensors, sink = inputs_of(MISSION), torch.randn(8, device="cuda")
    said: dict[str, Any] = {"window": (100, None), "causal": True, "softcap": 20.0, "sink": sink, "return_lse": True}
    assert evoengine.explain(*tensors, **said).server == "champion"
    o, lse = evoengine.attention(*tensors, **said, fallback=False)
    options = Options(causal=True, window_left=100, softcap=20.0, lse=True)
    assert_right(o, tensors, options, sink)
    q, k, v = (t.float() for t in tensors)
    _, exact = torch_attention(options, q, k, v, sink)
    assert exact is not None
    torch.testing.assert_close(lse, exact, rtol=1e-3, atol=1e-3)


def test_packed_sequences() -> None:
    q, k, v = draw(912, 8, 64), draw(912, 8, 64, seed=1), draw(912, 8, 64, seed=2)
    starts = torch.tensor([0, 512, 612, 912], dtype=torch.int32, device="cuda")
    said: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 512, "max_seqlen_kv": 512}
    assert evoengine.explain(q, k, v, **said).ours
    assert_right(evoengine.attention(q, k, v, **said), [q, k, v], Options(), None, starts, starts)


def test_an_elite_is_checked_before_other_lengths_and_masks() -> None:
    asked: list[tuple[Problem, dict[str, Any]]] = [(LONGER, {}), (MISSION, {"causal": True})]
    for problem, options in asked:
        tensors = inputs_of(problem)
        said = evoengine.explain(*tensors, **options)
        assert said.server == "elite", said
        o = evoengine.attention(*tensors, **options, fallback=False)
        assert_right(o, tensors, Options(causal=bool(options)))


@pytest.mark.parametrize("kind", ["outside", "slice", "expanded", "offset", "transposed"])
def test_any_strides(kind: str) -> None:
    shape = (2, 512, 8, 64)
    match kind:
        case "outside":
            tensors = [draw(*shape, seed=n).transpose(1, 2) for n in range(3)]
        case "slice":
            tensors = list(draw(2, 512, 3, 8, 64).permute(2, 0, 3, 1, 4).unbind(0))
        case "expanded":
            tensors = [draw(2, 8, 512, 64), *(draw(2, 1, 512, 64, seed=n).expand(2, 8, 512, 64) for n in (1, 2))]
        case "offset":
            tensors = [draw(2 * 8 * 512 * 64 + 3, seed=n)[3:].view(2, 8, 512, 64) for n in range(3)]
        case _:
            tensors = [draw(2, 8, 64, 512, seed=n).transpose(2, 3) for n in range(3)]
    assert evoengine.explain(*tensors).ours
    assert_right(evoengine.attention(*tensors, fallback=False), tensors)


def test_any_head_dim() -> None:
    tensors = inputs_of(replace(MISSION, head_dim=59))
    said = evoengine.explain(*tensors)
    assert (said.server, said.problem) == ("champion", MISSION.key)
    assert "padded" in said.reasons[0]
    assert_right(evoengine.attention(*tensors, fallback=False), tensors)


@pytest.mark.parametrize("problem", [MISSION, DECODE], ids=lambda p: p.key)
def test_graph_replay_on_new_inputs(problem: Problem) -> None:
    tensors = inputs_of(problem)
    evoengine.attention(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = evoengine.attention(*tensors, fallback=False)
        o = evoengine.attention(o, *tensors[1:], fallback=False)
    for seed in (10, 20):
        for old, new in zip(tensors, inputs_of(problem, seed), strict=True):
            old.copy_(new)
        graph.replay()
        first, _ = torch_attention(Options(), *(t.float() for t in tensors))
        assert_right(o, [first.to(o.dtype), *tensors[1:]])


def test_graph_capture_needs_an_earlier_call() -> None:
    tensors, graph = inputs_of(replace(MISSION, seq_q=333, seq_kv=333)), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")  # torch warns about empty graphs
        with pytest.raises(RuntimeError, match="before a CUDA graph"):
            evoengine.attention(*tensors)


@pytest.mark.filterwarnings("ignore")  # warnings of torch's compiler
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_programs_run_the_kernel(mode: str) -> None:
    program = torch.compile(
        lambda q, k, v: evoengine.attention(2 * q, k, v, fallback=False) + 1, mode=mode, fullgraph=True
    )
    tensors = inputs_of(MISSION)
    for _ in range(4):
        o = program(*tensors).clone()
    assert_right(o - 1, [2 * tensors[0], *tensors[1:]])


def test_streams_and_threads() -> None:
    """Each thread uses its own stream, with kernels that need the counters of their launcher."""
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            tensors = inputs_of(DECODE, 10 * number)
            exact, _ = torch_attention(Options(), *(t.float() for t in tensors))
            for _ in range(50):
                o = evoengine.attention(*tensors, fallback=False)
            if not torch.allclose(o.float(), exact, rtol=8e-3, atol=2e-3):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_gpu_than_the_current_one() -> None:
    tensors = [tensor.to("cuda:1") for tensor in inputs_of(MISSION)]
    assert evoengine.explain(*tensors).ours
    for _ in range(3):
        o = evoengine.attention(*tensors, fallback=False)
        assert (o.device, torch.cuda.current_device()) == (tensors[0].device, 0)
        assert_right(o, tensors)
        assert_right(evoengine.attention(*inputs_of(MISSION), fallback=False), inputs_of(MISSION))


def test_the_ops_pass_opcheck_on_the_gpu() -> None:
    options = (True, -1, -1, 0.0, None, 0, 0, "bhsd", True, "")
    torch.library.opcheck(torch.ops.evoengine.attention.default, (*inputs_of(MISSION), None, None, None, *options))
    torch.library.opcheck(torch.ops.evoengine.attention_qkv.default, tuple(inputs_of(MISSION)))
    options = (False, -1, -1, 0.0, None, 0, 0, "bhsd", True, "")
    torch.library.opcheck(torch.ops.evoengine.attention_lse.default, (*inputs_of(MISSION), None, None, None, *options))


def test_exported_modules_run_without_evoengine(board: Path, tmp_path: Path) -> None:
    run_export(ExportOptions(str(tmp_path / "kit.py"), format="torch", every=True, db=str(board)))
    program = (
        "import sys, runpy\n"
        "for name in ('evoengine', 'cupy', 'cuda', 'jinja2', 'sqlalchemy'):\n"
        "    sys.modules[name] = None\n"
        "runpy.run_path('kit.py', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("results are correct") == 5


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_exported_code_is_loaded_by_the_driver(board: Path, tmp_path: Path, kind: str) -> None:
    request = ExportOptions(
        str(tmp_path / f"one.{kind}"), best=True, problem="1x8x512x64-fp16", format=kind, db=str(board)
    )
    run_export(request)
    done = subprocess.run([sys.executable, "one_test.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "loaded by the driver" in done.stdout


def test_a_wrong_kernel_fails_the_first_use_check(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(kernel: Any, call: Any) -> Any:
        plan = plan_of(kernel, call)
        short = replace(plan.launches[0], grid=(1, *plan.launches[0].grid[1:]))  # omits rows
        return replace(plan, launches=(short, *plan.launches[1:]))

    monkeypatch.setattr("evoengine.api.selection_cache.plan_of", wrong)
    said = evoengine.explain(*inputs_of(LONGER))
    assert said.server == "sdpa"
    assert any("wrong for this problem" in reason for reason in said.reasons)
