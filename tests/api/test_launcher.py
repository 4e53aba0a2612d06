"""Launchers with real kernels: parameter block, layouts, features, streams, threads and rejected calls."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from evoengine.api.call_recording import record_attention
from evoengine.api.calls import problem_of
from evoengine.kernel.abi import PARAM_BYTES, BufferAddresses, Placement, pack_params
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.nvrtc import header_dirs
from evoengine.model import Problem
from evoengine.parity.mutants.mutant import MutantEdit
from evoengine.runtime.call import PARAM_BYTES as RUNTIME_BYTES
from evoengine.runtime.call import Call, CallStrides, Options, Strides, call_strides, read_call, strides_of
from evoengine.runtime.dispatch import Dispatcher
from evoengine.runtime.driver import LaunchConfig
from evoengine.runtime.first_use_check import check_kernel
from evoengine.runtime.launcher import KernelPlan
from evoengine.runtime.lookup import LauncherCache, ThreadCaches
from evoengine.runtime.shortcuts import tensor_guard
from evoengine.runtime.torch_fallback import torch_attention
from tests.api.emulated import STREAM, Emulated, EmulatedDriver

HALF = torch.float16


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HALF)


def starts(*lengths: int) -> torch.Tensor:
    return torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)


def places(q: Strides, k: Strides, v: Strides, o: Strides) -> BufferAddresses:
    return BufferAddresses(*(Placement(0, strides) for strides in (q, k, v, o)))  # type: ignore[arg-type]


def test_parameter_block_equals_that_of_devices() -> None:
    problem = Problem(
        *(3, 8, 70, 64), kv_heads=2, seq_kv=90, causal=True, window_left=20, softcap=9.0, sink=True, lse=True
    )
    q, k, v = draw(3, 70, 8, 64).transpose(1, 2), draw(3, 2, 90, 64), draw(3, 2, 90, 64)
    options = Options(causal=True, window_left=20, softcap=9.0, lse=True)
    call = read_call(q, k, v, torch.zeros(8), None, None, options)
    assert problem_of(call) == problem
    strides = [strides_of(tensor, call, "bhsd") for tensor in (q, k, v, q)]
    assert call.params(*strides) == pack_params(problem, places(*strides)).tobytes()
    assert RUNTIME_BYTES == PARAM_BYTES


@pytest.mark.parametrize("softcap", [0.0, 9.0, 1e-30])
@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-44, 2.0**127, -(2.0**127)])
def test_parameter_block_of_any_scale(scale: float, softcap: float) -> None:
    q = draw(1, 1, 4, 64)
    call = read_call(q, q, q, None, None, None, Options(softcap=softcap, scale=scale))
    strides = [strides_of(tensor, call, "bhsd") for tensor in (q, q, q, q)]
    block = pack_params(problem_of(call), places(*strides), scale)
    assert call.params(*strides) == block.tobytes()
    assert np.isfinite(block["scale_log2"])
    if softcap:
        assert np.isfinite(block["softcap_scale"] * np.float32(2.89)), "kernels multiply it by 2 log2(e)"
    else:
        assert block["softcap_scale"] >= np.finfo(np.float32).smallest_normal, "the factor on hidden scores of -inf"


def test_parameter_block_of_packed_sequences() -> None:
    q, k = draw(50, 4, 64), draw(60, 2, 64)
    options = Options(lse=True, max_seqlen_q=30, max_seqlen_kv=41)
    call = read_call(q, k, k, None, starts(30, 0, 20), starts(10, 9, 41), options)
    problem = problem_of(call)
    assert (problem.seq_q, problem.seq_kv, problem.rows_q, problem.rows_kv, problem.batch) == (30, 41, 50, 60, 3)
    strides = [strides_of(tensor, call, "bhsd") for tensor in (q, k, k, q)]
    assert call.params(*strides) == pack_params(problem, places(*strides)).tobytes()


def test_launch_structure_matches_cuda_h(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    folders = [folder for folder in header_dirs() if (folder / "cuda.h").is_file()]
    if compiler is None or not folders:
        pytest.skip("needs a C compiler and cuda.h")
    theirs = [*(f"{kind}Dim{axis}" for kind in ("grid", "block") for axis in "XYZ")]
    theirs += ["sharedMemBytes", "hStream", "attrs", "numAttrs"]
    offsets = ", ".join(f"(int)offsetof(CUlaunchConfig, {name})" for name in theirs)
    text = f"#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\nint offsets[] = {{{offsets}}};\n"
    text += 'int main(void) { for (int i = 0; i < 10; ++i) printf("%d ", offsets[i]);\n'
    text += 'printf("%d", (int)sizeof(CUlaunchConfig)); }\n'
    (tmp_path / "layout.c").write_text(text)
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{folders[0]}", str(tmp_path / "layout.c"), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    ours = [getattr(LaunchConfig, name).offset for name, *_ in LaunchConfig._fields_]
    assert [int(word) for word in said.split()] == [*ours, ctypes.sizeof(LaunchConfig)]


# -- real kernels on the emulator --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulated() -> Callable[..., Emulated]:
    return lambda *edits, **overrides: Emulated(default_cache_dir(), edits, **overrides)


def assert_right(
    o: torch.Tensor, options: Options, *tensors: torch.Tensor | None, lse: torch.Tensor | None = None
) -> None:
    q, k, v, *others = tensors
    assert q is not None
    assert k is not None
    assert v is not None
    exact, exact_lse = torch_attention(options, q.double(), k.double(), v.double(), *others)
    torch.testing.assert_close(o.double(), exact.double(), rtol=2e-3, atol=2e-3)
    if lse is not None:
        assert exact_lse is not None
        torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-4)


LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "contiguous": lambda: (draw(2, 2, 40, 64), draw(2, 2, 50, 64, seed=1), draw(2, 2, 50, 64, seed=2)),
    "rows outside heads": lambda: tuple(draw(2, n, 2, 64, seed=n).transpose(1, 2) for n in (40, 50, 50)),
    "slices of one tensor": lambda: draw(2, 48, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0),
    "heads shared by a stride of 0": lambda: (
        draw(2, 2, 40, 64),
        *(draw(2, 1, 50, 64, seed=n).expand(2, 2, 50, 64) for n in (1, 2)),
    ),
    "last axis outside": lambda: tuple(draw(2, 2, 64, n, seed=n).transpose(2, 3) for n in (40, 48, 48)),
    "rows off 16 bytes": lambda: tuple(draw(2, 2, n, 68, seed=n)[..., :64] for n in (40, 48, 48)),
    "first element off 16 bytes": lambda: tuple(
        draw(2 * 2 * n * 64 + 3, seed=n)[3:].view(2, 2, n, 64) for n in (40, 48, 48)
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.every(3)
def test_any_strides(emulated: Callable[..., Emulated], name: str) -> None:
    q, k, v = LAYOUTS[name]()
    here = emulated()
    o = here.attention(q, k, v, causal=True)
    assert_right(o, Options(causal=True), q, k, v)
    assert here.driver.launched == [("evo_attention", STREAM)]
    again = here.attention(*LAYOUTS[name](), causal=True)
    assert torch.equal(o, again)
    assert len(here.resolved) == 1
    assert o.stride() == here.attention(q, k, v, causal=True).stride()


def test_the_layout_names_the_axes(emulated: Callable[..., Emulated]) -> None:
    q, k, v = draw(2, 40, 4, 64), draw(2, 50, 2, 64, seed=1), draw(2, 50, 2, 64, seed=2)
    o, lse = emulated().attention(q, k, v, layout="bshd", return_lse=True)
    assert o.is_contiguous()
    assert_right(o, Options(layout="bshd", lse=True), q, k, v, lse=lse)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_scale_need_not_be_positive(emulated: Callable[..., Emulated], scale: float) -> None:
    q, k, v = draw(1, 4, 40, 64), draw(1, 2, 70, 64, seed=1), draw(1, 2, 70, 64, seed=2)
    sink = torch.randn(4, generator=torch.Generator().manual_seed(3))
    here = emulated(SPLITS=2, Q_LOCATION="shared", PACK_GQA=True)
    o, lse = here.attention(q, k, v, causal=True, sink=sink, scale=scale, return_lse=True)
    assert_right(o, Options(True, scale=scale, lse=True), q, k, v, sink, lse=lse)


def test_every_feature_and_scale(emulated: Callable[..., Emulated]) -> None:
    q, k, v = draw(1, 4, 40, 64), draw(1, 2, 70, 64, seed=1), draw(1, 2, 70, 64, seed=2)
    sink = torch.randn(4, generator=torch.Generator().manual_seed(3))
    said: dict[str, Any] = {"window": (20, 9), "softcap": 5.0, "scale": 0.2}
    o, lse = emulated().attention(q, k, v, **said, sink=sink, return_lse=True)
    assert_right(o, Options(False, 20, 9, 5.0, 0.2, lse=True), q, k, v, sink, lse=lse)


@pytest.mark.parametrize("combine", ["last", "kernel"])
def test_kernels_with_workspace_counters_and_steps(emulated: Callable[..., Emulated], combine: str) -> None:
    here = emulated(SPLITS=2, COMBINE=combine)
    q, k, v = draw(1, 2, 40, 64), draw(1, 2, 130, 64, seed=1), draw(1, 2, 130, 64, seed=2)
    for _ in range(2):  # the first call resets the counters to zero
        assert_right(here.attention(q, k, v), Options(), q, k, v)
    assert len(here.driver.launched) == (2 if combine == "last" else 4)


def test_packed_sequences(emulated: Callable[..., Emulated]) -> None:
    q, k, v = draw(60, 2, 64), draw(80, 2, 64, seed=1), draw(80, 2, 64, seed=2)
    here = emulated()
    one = starts(40, 0, 20), starts(30, 10, 40)
    o, lse = here.attention(q, k, v, cu_seqlens_q=one[0], cu_seqlens_kv=one[1], causal=True, return_lse=True)
    assert_right(o, Options(causal=True, lse=True), q, k, v, None, *one, lse=lse)
    other = starts(10, 40, 10), starts(40, 40, 0)  # equal count and maximum length: the same launcher
    o, lse = here.attention(q, k, v, cu_seqlens_q=other[0], cu_seqlens_kv=other[1], causal=True, return_lse=True)
    assert_right(o, Options(causal=True, lse=True), q, k, v, None, *other, lse=lse)
    assert len(here.resolved) == 1


def test_the_list_of_caches_holds_those_of_live_threads() -> None:
    caches: list[Any] = []
    threads = ThreadCaches(caches)
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert isinstance(threads.cache, LauncherCache)
        started.set()
        ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    assert len(caches) == 2
    ended.set()
    thread.join()
    assert [one() for one in caches] == [threads.cache]


def test_threads_have_separate_parameter_blocks(emulated: Callable[..., Emulated]) -> None:
    here, wrong = emulated(), []
    tensors = [tuple(draw(1, 2, 33, 64, seed=7 * n + i) for i in range(3)) for n in range(4)]
    wanted = [torch_attention(Options(), *(t.double() for t in some))[0] for some in tensors]

    def work(number: int) -> None:
        for _ in range(3):
            o = here.attention(*tensors[number]).double()
            if not torch.allclose(o, wanted[number], rtol=2e-3, atol=2e-3):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(here.resolved) == 1
    assert len(here.driver.launched) == 12


@pytest.mark.parametrize("said", [{}, {"return_lse": True}])
def test_the_device_is_current_only_during_the_launch(
    emulated: Callable[..., Emulated], monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    here, tensors, current = emulated(), [draw(1, 1, 16, 64, seed=n) for n in range(3)], [0]
    seen: list[int] = []
    run = here.driver.run

    @contextmanager
    def on(device: int) -> Iterator[None]:
        before, current[0] = current[0], device
        yield
        current[0] = before

    def launched(*what: Any) -> int:
        seen.append(current[0])
        return run(*what)

    monkeypatch.setattr(EmulatedDriver, "devices", 2)
    here.driver.current = lambda: current[0]
    here.driver.on = on  # type: ignore[method-assign]
    here.driver.run = launched  # type: ignore[method-assign,assignment]
    for _ in range(2):
        here.attention(*tensors, **said)
    assert seen == [tensors[0].get_device()] * 2
    assert current == [0]


def test_forget_resolves_calls_again(emulated: Callable[..., Emulated]) -> None:
    here, tensors = emulated(), [draw(1, 1, 16, 64, seed=n) for n in range(3)]
    here.attention(*tensors)
    here.dispatcher.forget()
    here.attention(*tensors)
    assert len(here.resolved) == 2


def test_forget_applies_to_a_kernel_that_another_thread_is_loading(
    emulated: Callable[..., Emulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tensors = emulated(), [draw(1, 1, 16, 64, seed=n) for n in range(3)]
    loading, forgotten, function = threading.Event(), threading.Event(), here.driver.function

    def slow_function(*what: Any) -> int:
        loading.set()
        forgotten.wait(60.0)
        return function(*what)

    def call_twice() -> None:
        here.attention(*tensors)
        here.attention(*tensors)

    monkeypatch.setattr(here.driver, "function", slow_function)
    thread = threading.Thread(target=call_twice)
    thread.start()
    assert loading.wait(60.0)
    here.dispatcher.forget()
    forgotten.set()
    thread.join()
    assert len(here.resolved) == 2


def test_compiled_op_runs_the_kernel_with_fixed_strides(emulated: Callable[..., Emulated]) -> None:
    here = emulated()
    q, k, v = (draw(2, 33, 2, 64, seed=n).transpose(1, 2) for n in range(3))
    program = torch.compile(
        lambda a, b, c: 2 * here.attention(a, b, c, causal=True), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(program(q, k, v), 2 * here.attention(q, k, v, causal=True))
    assert len(here.driver.launched) == 2


def test_failed_launch_is_an_error(emulated: Callable[..., Emulated]) -> None:
    here, tensors = emulated(), [draw(1, 1, 16, 64, seed=n) for n in range(3)]
    here.driver.launch_of = lambda *_: lambda: 700  # type: ignore[method-assign]
    here.driver.explain = lambda status: f"status {status}"  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="status 700"):
        here.attention(*tensors)


def test_capture_without_fallback_reuses_the_kernel(emulated: Callable[..., Emulated]) -> None:
    here, tensors = emulated(), [draw(1, 1, 16, 64, seed=n) for n in range(3)]
    o = here.attention(*tensors)
    here.driver.capturing = lambda: True  # type: ignore[method-assign]
    assert torch.equal(here.attention(*tensors, fallback=False), o)
    assert len(here.resolved) == 1


def test_kernels_are_not_loaded_during_a_capture(emulated: Callable[..., Emulated]) -> None:
    here = emulated()
    here.driver.capturing = lambda: True  # type: ignore[method-assign]
    with FakeTensorMode():  # tensors on a GPU without one
        q = torch.empty(1, 1, 16, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="CUDA graph"):
        here.dispatcher.prepare((q, q, q, None, None, None), Options(), True, "", False)
    assert here.resolved == []


TRIED: dict[str, Options] = {
    "plain": Options(),
    "causal": Options(causal=True),
    "features": Options(False, 20, 9, 5.0, lse=True),
}


def test_first_use_check_detects_unwritten_rows_in_reused_memory(
    emulated: Callable[..., Emulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, options = emulated(), TRIED["plain"]
    q, k = draw(1, 2, 40, 64), draw(1, 1, 70, 64)
    call = read_call(q, k, k, None, None, None, options)
    used: dict[tuple[int, ...], torch.Tensor] = {}

    def again(shape: tuple[int, ...], strides: tuple[int, ...], **said: Any) -> torch.Tensor:
        """Allocator that returns the same memory each time."""
        return used.setdefault(shape, torch.zeros(shape, **said))

    def wrong(other: Call) -> KernelPlan:
        plan = here.resolve(other, -1, False, "")
        return replace(plan, launches=(replace(plan.launches[0], grid=(1, *plan.launches[0].grid[1:])),))

    monkeypatch.setattr(torch, "empty_strided", again)
    assert check_kernel(lambda other: here.resolve(other, -1, False, ""), call, -1, here.driver) == ""
    assert "largest error" in check_kernel(wrong, call, -1, here.driver)


@pytest.mark.parametrize("packed", [False, True])
def test_first_use_check_has_the_strides_of_the_call(emulated: Callable[..., Emulated], packed: bool) -> None:
    """K is a prefix of a cache, V is sliced from packed QKV, and the wrong kernel reads V with the row stride of K."""
    q, k, v = (
        draw(2, 2, 40, 64),
        draw(2, 1, 90, 64, seed=1)[:, :, :70],
        draw(2, 70, 4, 64, seed=2)[:, :, 3:].transpose(1, 2),
    )
    one = starts(40, 20) if packed else None
    if packed:
        q, k, v = draw(60, 2, 64), draw(60, 1, 64, seed=1), draw(60, 4, 64, seed=2)[:, 3:]
    call = read_call(q, k, v, None, one, one, Options())
    strides = call_strides((q, k, v), call, "bhsd")
    right, wrong = emulated(), emulated(MutantEdit("p.v_row_stride", "p.k_row_stride", 2))

    def trial(here: Emulated, given: CallStrides | None) -> str:
        return check_kernel(lambda other: here.resolve(other, -1, False, ""), call, -1, here.driver, strides=given)

    assert trial(right, None) == trial(right, strides) == ""
    assert trial(wrong, None) == "", "contiguous tensors do not show it"
    assert "largest error is inf" in trial(wrong, strides)


def test_kinds_of_strides() -> None:
    dense = draw(2, 2, 40, 64)
    call = read_call(dense, dense, dense, None, None, None, Options())
    qkv, cache = draw(2, 40, 6, 64).transpose(1, 2), draw(2, 2, 90, 64)
    kinds = {
        "bhsd": dense,
        "bshd": draw(2, 40, 2, 64).transpose(1, 2),
        "bs+hd": qkv[:, 2:4],
        "bh+sd": cache[:, :, :40],
        "bsdh0": draw(2, 1, 40, 64).expand(2, 2, 40, 64),
        "": draw(2, 2, 64, 40).transpose(2, 3),
    }
    for pattern, tensor in kinds.items():
        assert call_strides((dense, tensor, dense), call, "bhsd").patterns == ("bhsd", pattern, "bhsd")
    again = call_strides((draw(2, 2, 41, 64),) * 3, call, "bhsd")
    assert again == call_strides((dense,) * 3, call, "bhsd"), "sizes do not matter"


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.every(4)
def test_first_use_check_accepts_right_and_rejects_wrong_kernels(
    emulated: Callable[..., Emulated], name: str, packed: bool
) -> None:
    here, options = emulated(), TRIED[name]
    q, k = (draw(60, 2, 64), draw(60, 1, 64)) if packed else (draw(1, 2, 40, 64), draw(1, 1, 70, 64))
    one = starts(40, 20) if packed else None
    sink = torch.zeros(2) if name == "features" else None
    call = read_call(q, k, k, sink, one, one, options)

    def right(other: Call) -> KernelPlan:
        return here.resolve(other, -1, False, "")

    def wrong(other: Call) -> KernelPlan:
        plan = right(other)
        first = plan.launches[0]
        return replace(plan, launches=(replace(first, grid=(1, *first.grid[1:])),))  # the first query tile only

    assert check_kernel(right, call, -1, here.driver) == ""
    found = check_kernel(wrong, call, -1, here.driver)
    assert "largest error" in found
    with record_attention() as recorded, torch.autocast("cpu", torch.bfloat16):
        assert check_kernel(wrong, call, -1, here.driver) == found, "error and bound are those of float32 here, too"
    assert recorded.calls == (), "the program made no call"


@pytest.mark.parametrize("options", [{}, {"causal": True, "return_lse": True}, {"layout": "bshd", "scale": -0.3}])
@pytest.mark.parametrize("head_dim", [1, 60, 61])
@pytest.mark.every(4)
def test_any_head_dim(emulated: Callable[..., Emulated], head_dim: int, options: dict[str, Any]) -> None:
    """Kernels read multiples of 8; the default scale is that of the tensors' own head_dim."""
    q, k, v = (draw(2, rows, rows, head_dim, seed=n) for n, rows in enumerate((4, 2, 2)))
    here = emulated()
    given = {name.removeprefix("return_"): value for name, value in options.items()}
    for tensors in ((q, k, v), tuple(torch.nn.functional.pad(one, (0, 3))[..., :head_dim] for one in (q, k, v))):
        result = here.attention(*tensors, **options)
        o, lse = result if isinstance(result, tuple) else (result, None)
        assert (o.shape, o.stride()) == (q.shape, q.stride())
        assert_right(o, Options(**given), q, k, v, lse=lse)
    assert {call.head_dim for call in here.resolved} == {-(-head_dim // 8) * 8}


def test_compiled_programs_pad_head_dim(emulated: Callable[..., Emulated]) -> None:
    here = emulated()
    q, k, v = (draw(2, 33, 2, 36, seed=n).transpose(1, 2) for n in range(3))
    program = torch.compile(lambda *tensors: 2 * here.attention(*tensors), backend="aot_eager", fullgraph=True)
    assert torch.equal(program(q, k, v), 2 * here.attention(q, k, v))
    assert len(here.driver.launched) == 2


# -- guards: calls like the previous one ------------------------------------------------------------------------------


def three(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    return [draw(*shape, seed=seed + n) for n in range(3)]


def test_guard_distinguishes_tensors_and_modes() -> None:
    q, k, v = three(1, 2, 16, 64)
    guard = tensor_guard(q, k, v)
    assert guard is not None  # fails for an unknown version of torch: see shortcuts.py
    assert guard(*three(1, 2, 16, 64, seed=9))
    others = [k.bfloat16(), draw(1, 2, 17, 64), draw(2, 1, 16, 64), draw(1, 16, 2, 64).transpose(1, 2), k.to("meta")]
    others += [draw(1, 2, 16, 128)[..., :64], draw(1, 2, 16, 64).requires_grad_(), torch.nn.Parameter(v)]
    for other in others:
        assert not guard(q, other, v)
        assert not guard(other, k, v)
        assert not guard(q, k, other)
    with FakeTensorMode() as mode:
        assert not guard(*map(mode.from_tensor, (q, k, v)))
    with FlopCounterMode(display=False):
        assert not guard(q, k, v)
    with torch.no_grad():
        assert guard(q, k, v)
        assert tensor_guard(q.clone().requires_grad_(), k, v) is None


def test_alternating_kinds_of_calls(emulated: Callable[..., Emulated]) -> None:
    here = emulated()
    kinds: list[tuple[list[torch.Tensor], dict[str, Any], Options]] = [
        (three(1, 2, 16, 64), {}, Options()),
        (three(1, 2, 16, 64), {"causal": True}, Options(causal=True)),
        ([t.transpose(1, 2) for t in three(1, 16, 2, 64)], {}, Options()),
        ([draw(1, 2, 9, 64), *three(1, 2, 16, 64)[1:]], {}, Options()),
        ([draw(1, 4, 16, 64), *three(1, 2, 16, 64)[1:]], {}, Options()),
        ([draw(1, 2, 3, 64), *three(1, 2, 16, 64)[1:]], {}, Options()),
        (three(1, 2, 16, 64), {"window": [3, None]}, Options(window_left=3)),
    ]
    for _ in range(3):
        for tensors, said, options in kinds:
            assert_right(here.attention(*tensors, **said), options, *tensors)
            assert_right(here.attention(*tensors, **said), options, *tensors)
    assert len(here.driver.launched) == 6 * len(kinds)


def test_window_list_modified_in_place(emulated: Callable[..., Emulated]) -> None:
    here, tensors = emulated(), three(1, 2, 16, 64)
    window: Any = [2, 0]
    for left in (2, 2, 5):
        window[0] = left
        assert_right(here.attention(*tensors, window=window), Options(window_left=left, window_right=0), *tensors)


def test_guards_do_not_hide_gradients(emulated: Callable[..., Emulated]) -> None:
    here, (q, k, v) = emulated(), three(1, 2, 16, 64)
    trained = q.clone().requires_grad_()
    for _ in range(2):
        here.attention(q, k, v)
        with torch.no_grad():
            assert not here.attention(trained, k, v).requires_grad
        o = here.attention(trained, k, v)
        torch.autograd.backward(o.float().sum())
        assert trained.grad is not None
        trained.grad = None
    sink = torch.zeros(2, requires_grad=True)
    torch.autograd.backward(here.attention(q, k, v, sink=sink).float().sum())
    assert sink.grad is not None
    ops = getattr(torch.ops, here.dispatcher.namespace)
    for given in ((trained, k, v), (q, k, v, sink)):
        with pytest.raises(RuntimeError, match="no gradient"):
            ops.attention(*given)


def test_different_options_have_different_launchers() -> None:
    """Calls that differ in a single option never share a launcher."""
    seen: list[Call] = []

    def resolve(call: Call, *_: object) -> None:
        seen.append(call)

    attention = Dispatcher("evotestkeys", resolve).attention
    q, k = draw(1, 2, 16, 64), draw(1, 1, 16, 64)
    said: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (3, None)}, {"window": (None, 3)}, {"softcap": 1.0}]
    said += [{"scale": 1.0}, {"sink": torch.zeros(2)}, {"return_lse": True}, {"leaderboard": "x"}]
    for options in said:
        attention(q, k, k, **options)
        attention(q, k, k, **options)
    assert len(seen) == len(said)
    assert len({repr(call) for call in seen}) == len(said) - 1  # the leaderboard is not part of the call
    attention(q.bfloat16(), k.bfloat16(), k.bfloat16())
    attention(q[:, :, :8], k, k)
    assert len(seen) == len(said) + 2
    np.testing.assert_equal(len({call.dtype for call in seen}), 2)
