"""Fixtures of the emulator tests: compilation of CUDA sources with NVRTC, and a harness for single PTX instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evoengine.emulator import Emulator, GlobalMemory, LaunchReport

Dims = int | Sequence[int]
_PTX_TYPE = {"u": "u", "i": "s", "f": "f"}


@cache
def _compile(source: str, options: tuple[str, ...], arch: str) -> str:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, None, None)
    virtual = arch.replace("sm_", "compute_")  # PTX alone: without ptxas
    flags = [f"-arch={virtual}".encode(), b"-lineinfo", b"--std=c++17", *(option.encode() for option in options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return str(text.rstrip(b"\0"), "ascii")


@pytest.fixture(scope="session")
def compile_cuda() -> Callable[..., str]:
    """Function ``compile_cuda(source, *options, arch="sm_89") -> ptx``."""

    def compile_cuda(source: str, *options: str, arch: str = "sm_89") -> str:
        return _compile(source, options, arch)

    return compile_cuda


def ptx_type(dtype: np.dtype) -> str:
    """PTX type of a NumPy dtype; float16 is ``b16``."""
    return "b16" if dtype == np.float16 else f"{_PTX_TYPE[dtype.kind]}{dtype.itemsize * 8}"


def wrap(body: str, registers: str, params: int) -> str:
    """Text of a PTX module with one entry ``k`` that has ``params`` 64-bit parameters."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(params))
    return f""".version 9.0
.target sm_89
.address_size 64
.visible .entry k({declared})
{{
{registers}
{body}
    ret;
}}
"""


def elementwise(code: str, inputs: Sequence[np.ndarray], out: type | np.dtype, *, threads: int = 64) -> np.ndarray:
    """Runs PTX code in one thread per element and returns the results.

    Args:
        code: PTX statements that read ``%a0``, ``%a1`` … and write ``%d``. Free registers are ``%x0`` to ``%x9`` (b32)
            and ``%q0`` to ``%q9`` (pred).
        inputs: Values of ``%a0``, ``%a1`` …
        out: Type of the results.
        threads: Threads per CTA.
    """
    out = np.dtype(out)
    count = len(inputs[0])
    lines = ["mov.u32 %i, %tid.x;", "mov.u32 %j, %ctaid.x;", "mov.u32 %k, %ntid.x;", "mad.lo.s32 %i, %j, %k, %i;"]
    registers = [".reg .b32 %i, %j, %k;", ".reg .b64 %addr, %off;", ".reg .pred %q<10>;", ".reg .b32 %x<10>;"]
    registers.append(f".reg .{ptx_type(out)} %d;")
    for number, array in enumerate(inputs):
        kind = ptx_type(array.dtype)
        registers.append(f".reg .{'b32' if array.dtype.itemsize == 1 else kind} %a{number};")
        lines += [
            f"ld.param.u64 %addr, [p{number}];",
            f"mul.wide.u32 %off, %i, {array.dtype.itemsize};",
            "add.s64 %addr, %addr, %off;",
        ]
        lines.append(f"ld.global.{kind} %a{number}, [%addr];")
    lines.append(code)
    lines += [
        f"ld.param.u64 %addr, [p{len(inputs)}];",
        f"mul.wide.u32 %off, %i, {out.itemsize};",
        "add.s64 %addr, %addr, %off;",
    ]
    lines.append(f"st.global.{ptx_type(out)} [%addr], %d;")
    ptx = wrap("\n".join(lines), "\n".join(registers), len(inputs) + 1)
    memory = GlobalMemory()
    buffers = [memory.alloc(array) for array in inputs]
    result = memory.alloc(count * out.itemsize, initialised=False, name="out")
    assert count % threads == 0
    Emulator(ptx).launch(count // threads, threads, [*buffers, result], memory=memory)
    return memory.read(result, out)


@pytest.fixture(scope="session")
def run_elementwise() -> Callable[..., np.ndarray]:
    """:func:`elementwise` as a fixture, because test modules are not in a package."""
    return elementwise


@pytest.fixture(scope="session")
def run_cuda(compile_cuda: Callable[..., str]) -> Callable[..., tuple[list[np.ndarray], LaunchReport]]:
    """Function ``run_cuda(source, grid, block, arrays, scalars) -> (arrays after the launch, report)``.

    The arguments of the kernel are pointers to the arrays, then the scalars.
    """

    def run(
        source: str,
        grid: Dims,
        block: Dims,
        arrays: Sequence[np.ndarray],
        scalars: Sequence[object] = (),
        smem_bytes: int = 0,
        options: Sequence[str] = (),
        max_batch_lanes: int = 4096,
    ) -> tuple[list[np.ndarray], LaunchReport]:
        memory = GlobalMemory()
        buffers = [memory.alloc(array, name=f"arg{n}") for n, array in enumerate(arrays)]
        emulator = Emulator(compile_cuda(source, *options))
        report = emulator.launch(
            grid, block, [*buffers, *scalars], memory=memory, smem_bytes=smem_bytes, max_batch_lanes=max_batch_lanes
        )
        return [memory.read(b, a.dtype, a.shape) for b, a in zip(buffers, arrays, strict=True)], report

    return run


@pytest.fixture(scope="session")
def compile_hopper(compile_cuda: Callable[..., str]) -> Callable[[str], str]:
    """Function ``compile_hopper(source) -> ptx`` for sm_90a; the source may use the functions of hopper.cuh."""
    header = (Path(__file__).parent / "hopper.cuh").read_text("utf-8")
    return lambda source: compile_cuda(header + source, arch="compute_90a")  # PTX only, without ptxas
