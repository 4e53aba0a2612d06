"""A fused-attention kernel (``flash.cu``: mma, ldmatrix, cp.async, shuffles, ex2) against attention in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, LaunchReport

SOURCE = (Path(__file__).parent / "flash.cu").read_text()
PARAMS = np.dtype(
    [
        ("pointers", np.uint64, 4),
        ("seq_q", np.int32),
        ("seq_kv", np.int32),
        ("scale_log2", np.float32),
        ("pad", np.int32),
    ]
)


def launch(
    ptx: str, heads: int, seq_q: int, seq_kv: int, warps: int, bf16: bool, causal: bool, max_batch_lanes: int = 4096
) -> tuple[np.ndarray, np.ndarray, LaunchReport]:
    """Runs the kernel; returns its output, the float64 reference, and the report."""
    generator = np.random.default_rng(seq_q + seq_kv)
    tensors = [generator.standard_normal((heads, s, 64)).astype(np.float32) for s in (seq_q, seq_kv, seq_kv)]
    if bf16:
        bits = [(t.view(np.uint32) >> 16).astype(np.uint16) for t in tensors]
        q, k, v = ((b.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for b in bits)
    else:
        bits = [t.astype(np.float16).view(np.uint16) for t in tensors]
        q, k, v = (b.view(np.float16).astype(np.float64) for b in bits)
    memory = GlobalMemory()
    buffers = [memory.alloc(b, name=n) for b, n in zip(bits, "qkv", strict=True)]
    out = memory.alloc(bits[0].nbytes, initialised=False, name="o")
    params = np.zeros((), PARAMS)
    params["pointers"] = [b.address for b in (*buffers, out)]
    params["seq_q"], params["seq_kv"], params["scale_log2"] = seq_q, seq_kv, np.log2(np.e) / 8
    grid = (-(-seq_q // (16 * warps)), heads)
    smem = warps * 2048 + 4 * 64 * 128
    report = Emulator(ptx).launch(
        grid, 32 * warps, [params], memory=memory, smem_bytes=smem, max_batch_lanes=max_batch_lanes
    )
    assert memory.written(out).all()
    raw = memory.read(out, np.uint16, q.shape)
    got = (raw.astype(np.uint32) << 16).view(np.float32) if bf16 else raw.view(np.float16).astype(np.float32)
    scores = q @ k.transpose(0, 2, 1) / 8
    if causal:
        scores = np.where(np.arange(seq_kv) <= np.arange(seq_q)[:, None] + seq_kv - seq_q, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return got, weights / weights.sum(-1, keepdims=True) @ v, report


@pytest.mark.parametrize(
    ("heads", "seq_q", "seq_kv", "warps", "bf16", "causal"),
    [
        (1, 64, 64, 4, False, False),
        (2, 50, 77, 4, False, False),
        (1, 1, 1, 1, False, False),
        (3, 200, 200, 2, False, True),
        (2, 70, 300, 4, True, True),
        (1, 130, 129, 8, True, False),
    ],
)
@pytest.mark.every(3)
def test_attention(
    compile_cuda: Callable[..., str], heads: int, seq_q: int, seq_kv: int, warps: int, bf16: bool, causal: bool
) -> None:
    ptx = compile_cuda(SOURCE, f"-DWARPS={warps}", f"-DBF16={int(bf16)}", f"-DCAUSAL={int(causal)}")
    got, want, _ = launch(ptx, heads, seq_q, seq_kv, warps, bf16, causal)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if bf16 else 2e-3)


def test_counts_do_not_depend_on_the_batch(compile_cuda: Callable[..., str]) -> None:
    ptx = compile_cuda(SOURCE, "-DWARPS=4", "-DCAUSAL=1")
    one, _, first = launch(ptx, 2, 256, 256, 4, False, True, max_batch_lanes=128)
    many, _, second = launch(ptx, 2, 256, 256, 4, False, True, max_batch_lanes=8192)
    np.testing.assert_array_equal(one, many)
    assert first == second
    full_tiles = 2 * 4 * (1 + 2 + 3 + 4)  # heads x warps x visible key tiles of the four query blocks
    assert first.tensor_flops == full_tiles * 2 * (2 * 16 * 64 * 64)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('asm volatile("cp.async.wait_group 1;\\n" ::: "memory");\n    __syncthreads();\n    if (t == 0)',
        "__syncthreads();\n    if (t == 0)"),
        ('asm volatile("cp.async.wait_group 1;\\n" ::: "memory");\n    __syncthreads();\n    if (t == 0)',
         'asm volatile("cp.async.wait_group 1;\\n" ::: "memory");\n    if (t == 0)'),
        ('asm volatile("cp.async.wait_group 1;\\n" ::: "memory");\n    __syncthreads();\n    if (t + 1',
         'asm volatile("cp.async.wait_group 2;\\n" ::: "memory");\n    __syncthreads();\n    if (t + 1'),
    ],
    ids=["no wait", "no barrier", "one group late"],
)  # fmt: skip
def test_pipeline_bugs_are_detected(compile_cuda: Callable[..., str], old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    ptx = compile_cuda(SOURCE.replace(old, new), "-DWARPS=4")
    with pytest.raises(EmulatorError) as caught:
        launch(ptx, 1, 64, 256, 4, False, False)
    assert caught.value.kind is FaultKind.CP_ASYNC_NOT_WAITED
    assert "ldmatrix" in caught.value.fault.ptx_text
