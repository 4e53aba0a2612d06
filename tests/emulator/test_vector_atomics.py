"""Atomics on vectors in global memory and bulk reductions, against NumPy, and faults for misuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind
from evoengine.emulator.emulator import Asynchrony

VECTORS = """
extern "C" __global__ void k(TYPE* sums, TYPE* seen, const TYPE* in, int skew) {
  const TYPE* from = in + (blockIdx.x * blockDim.x + threadIdx.x) * N;
  TYPE* to = sums + threadIdx.x % 8 * N + skew;
  asm volatile("{.reg .b32 a<8>, b<8>; LOADS ATOMIC STORES}" :: "l"(to), "l"(from), "l"(seen + (from - in)) : "memory");
}
"""


def vector_source(kind: str, count: int, opcode: str) -> str:
    """Source of a kernel in which each thread executes an atomic on a vector of ``count`` elements."""
    bits = 16 if kind in ("f16", "bf16") else 32
    width = f"b{bits}"
    declared = f".reg .{width} a<8>, b<8>;"
    names = {letter: ", ".join(f"{letter}{number}" for number in range(count)) for letter in "ab"}
    step = bits // 8
    loads = " ".join(f"ld.global.{width} a{i}, [%1+{step * i}];" for i in range(count))
    stores = " ".join(f"st.global.{width} [%2+{step * i}], b{i};" for i in range(count))
    returns = opcode.startswith("atom")
    old = f"{{{names['b']}}}, " if returns else ""
    atomic = f"{opcode}.v{count}.{kind} {old}[%0], {{{names['a']}}};"
    text = VECTORS.replace(".reg .b32 a<8>, b<8>;", declared).replace("LOADS", loads).replace("ATOMIC", atomic)
    text = text.replace("STORES", stores if returns else "")
    return text.replace("TYPE", "unsigned short" if bits == 16 else "unsigned").replace("N", str(count))


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Bits of small integers as elements of a PTX type, which may be packed in pairs."""
    single = values.astype(np.float32).view(np.uint32)
    if kind == "f32":
        return single
    return (single >> 16).astype(np.uint16) if kind[0] == "b" else values.astype(np.float16).view(np.uint16)


@pytest.mark.parametrize(
    ("kind", "count", "opcode"),
    [
        ("f32", 2, "atom.global.add"),
        ("f32", 4, "red.relaxed.gpu.global.add"),
        ("f16", 8, "atom.global.add.noftz"),
        ("bf16", 4, "red.global.add.noftz"),
        ("f16x2", 4, "red.global.add.noftz"),
        ("bf16x2", 2, "atom.global.max.noftz"),
        ("f16", 2, "red.global.min.noftz"),
    ],
)
def test_atomics_on_vectors(compile_hopper: Callable[[str], str], kind: str, count: int, opcode: str) -> None:
    # Small integers, so that sums have no rounding and do not depend on the order.
    values = np.random.default_rng(0).integers(-8, 9, (64, count * (2 if kind.endswith("x2") else 1)))
    given, sums = encode(values, kind), encode(np.zeros((8, values.shape[1])), kind)
    seen = np.zeros_like(given)
    emulator = Emulator(compile_hopper(vector_source(kind, count, opcode)))
    emulator.launch(2, 32, [sums, seen, given, 0], races=True, lanes=True)
    start = np.zeros((1, 8, values.shape[1]), np.int64)
    turns = np.concatenate([start, values.reshape(8, 8, -1)])
    function = {"add": np.add, "max": np.maximum, "min": np.minimum}[opcode.split(".")[-2 if "noftz" in opcode else -1]]
    running = function.accumulate(turns, axis=0)
    np.testing.assert_array_equal(sums, encode(running[-1], kind))
    if opcode.startswith("atom"):
        np.testing.assert_array_equal(seen.reshape(8, 8, -1), encode(running[:-1], kind))
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(2, 32, [np.concatenate([sums, sums]), seen, given, 1], races=True)
    assert caught.value.kind is FaultKind.MISALIGNED
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(2, 32, [sums[:7], seen, given, 0], races=True)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


REDUCE = """
extern "C" __global__ void k(TYPE* out, const TYPE* in) {
  __shared__ __align__(16) TYPE tile[64];
  for (int round = 0; round < 2; round++) {
    for (int i = threadIdx.x; i < 64; i += blockDim.x) tile[i] = in[(blockIdx.x * 2 + round) * 64 + i];
    FENCE
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.OPERATION.KIND [%0], [%1], %2;"
                   :: "l"(out), "r"(shared_address(tile)), "r"((int)sizeof(tile)) : "memory");
      commit();
      WAIT
    }
    __syncthreads();
  }
}
"""
REDUCTIONS = [
    ("add", "f32", np.float32),
    ("add", "u32", np.uint32),
    ("add.noftz", "f16", np.float16),
    ("max", "s32", np.int32),
    ("min", "u64", np.uint64),
    ("xor", "b32", np.uint32),
    ("inc", "u32", np.uint32),
]


def run_reduction(
    compile_hopper: Callable[[str], str],
    operation: str,
    kind: str,
    dtype: type,
    asynchrony: Asynchrony,
    changes: dict[str, str],
) -> tuple[np.ndarray, np.ndarray]:
    """Runs three CTAs that each reduce two tiles into one; returns what was reduced and the result."""
    names = {"f16": "u16", "f32": "float", "s32": "int", "u64": "u64"}
    facts = {"FENCE": "fence_proxy();", "WAIT": "wait_read<0>();", **changes}
    facts |= {"TYPE": names.get(kind, "u32"), "OPERATION": operation, "KIND": kind}
    text = REDUCE
    for name, value in facts.items():
        text = text.replace(name, value)
    tiles: np.ndarray = np.random.default_rng(1).integers(0, 9, (7, 64)).astype(dtype)
    if operation == "inc":
        tiles[1:] = 6  # with equal limits, the order does not matter
    out = np.concatenate([tiles[0], tiles[0]])
    Emulator(compile_hopper(text)).launch(3, 64, [out, tiles[1:]], races=True, lanes=True, asynchrony=asynchrony)
    np.testing.assert_array_equal(out[64:], tiles[0])
    return tiles, out[:64]


@pytest.mark.parametrize("asynchrony", ["early", "late"])
@pytest.mark.parametrize(("operation", "kind", "dtype"), REDUCTIONS)
def test_bulk_reductions(
    compile_hopper: Callable[[str], str], operation: str, kind: str, dtype: type, asynchrony: Asynchrony
) -> None:
    tiles, out = run_reduction(compile_hopper, operation, kind, dtype, asynchrony, {})
    if operation == "inc":
        np.testing.assert_array_equal(out, np.where(tiles[0] <= 6, (tiles[0] + 6) % 7, 5))
        return
    functions = {"add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor}
    function = functions[operation.removesuffix(".noftz")]
    np.testing.assert_array_equal(out, function.reduce(tiles, axis=0))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"FENCE": ""}, FaultKind.MISSING_PROXY_FENCE),
        ({"WAIT": ""}, FaultKind.OPERAND_IN_FLIGHT),
        ({"threadIdx.x == 0": "threadIdx.x == 0 && (out[0] = 1)"}, FaultKind.UNPUBLISHED_READ),
        ({"[%0]": "[%0+4]"}, FaultKind.MISALIGNED),
        ({"[%0]": "[%0+1024]"}, FaultKind.OUT_OF_BOUNDS),
    ],
    ids=["fence", "wait", "plain store", "aligned", "inside"],
)
def test_misuse_of_bulk_reductions(
    compile_hopper: Callable[[str], str], changes: dict[str, str], kind: FaultKind
) -> None:
    with pytest.raises(EmulatorError) as caught:
        run_reduction(compile_hopper, "add", "u32", np.uint32, "early", changes)
    assert caught.value.kind is kind
