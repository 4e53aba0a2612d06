"""The NVRTC library, called through ``cuda.bindings``: text in, cubin, PTX and log out. Needs no GPU and no driver."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import CompileError, EvoEngineError, MissingDependencyError, UsageError

INSTALL_NVRTC: Final = "python -m pip install 'cuda-bindings==13.0.*' 'nvidia-cuda-nvrtc==13.0.*'"
INSTALL_HEADERS: Final = "python -m pip install 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'"
ANY_HEADER: Final = "cuda_fp16.h"
_TOOLS_VERSION: Final = re.compile(r"V(\d+\.\d+\.\d+)")
_ERROR_LINE: Final = re.compile(r"(?:^|\s)(?:fatal )?error\s*:", re.IGNORECASE)
_COMPILE_TIME: Final = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)
"""The one line of ptxas' report that differs from run to run."""
_MAX_MESSAGE: Final = 300
_INCLUDES: Final = re.compile(r"^\s*#\s*include\s*<", re.MULTILINE)


@dataclass(frozen=True)
class Compilation:
    """What one run of NVRTC produced."""

    cubin: bytes
    ptx: str
    log: str


def nvrtc_version() -> str:
    """Full version of the NVRTC in use, for example ``13.0.88``.

    Raises:
        MissingDependencyError: NVRTC is not installed.
    """
    return _version()


def supported_archs() -> tuple[int, ...]:
    """Compute capabilities that this NVRTC compiles for, as in 80, 86, 89.

    Raises:
        MissingDependencyError: NVRTC is not installed.
    """
    nvrtc = _library()
    return tuple(int(item) for item in _call(nvrtc.nvrtcGetSupportedArchs()))


def run_nvrtc(text: str, name: str, options: Sequence[str]) -> Compilation:
    """Compiles one text.

    Args:
        text: CUDA C++.
        name: what messages and line information call the text. NVRTC writes a relative name with the working directory
            before it into the PTX, so an absolute one keeps the output the same everywhere.
        options: NVRTC options; one of them names the architecture.

    Raises:
        CompileError: the text does not compile; the message is the first error.
        UsageError: NVRTC refuses an option.
        MissingDependencyError: NVRTC is not installed.
    """
    nvrtc = _library()
    program = _call(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise UsageError(_first_error(log, name))
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_first_error(log, name) or result.name)
        return Compilation(
            cubin=_read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
            ptx=_read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode(),
            log=_COMPILE_TIME.sub("", log).rstrip("\0 \n"),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_ptx(text: str, arch: str = "sm_89", *options: str, name: str = "kernel.cu") -> str:
    """The PTX of a CUDA source, with line information.

    Do not pass ``-G`` in a process that also compiles candidates: NVRTC 13.0.88 then makes other machine code of every
    later source in the process.

    Args:
        text: CUDA C++; CUDA's own headers are found.
        arch: as ``sm_89``.
        options: further NVRTC options, such as ``-DN=4`` or ``--use_fast_math``.
        name: what messages call the text.

    Raises:
        CompileError: the text does not compile.
        UsageError: NVRTC refuses an option.
        MissingDependencyError: NVRTC, or the headers that the text includes, are not installed.
    """
    fixed = [f"-arch={arch.replace('sm_', 'compute_')}", "-lineinfo", "-default-device"]
    standard = [] if any("std=" in option for option in options) else ["--std=c++17"]
    folders = [f"--include-path={folder}" for folder in header_dirs()] if _INCLUDES.search(text) else []
    return run_nvrtc(text, f"/{name}", [*fixed, *standard, *folders, *options]).ptx


def header_dirs(headers: Collection[str] = (ANY_HEADER,)) -> tuple[Path, ...]:
    """The folders with the CUDA headers of NVRTC's major version, from the pip wheels.

    Args:
        headers: what must be found in them, as it is included; ``mma.h`` is only a door to ``crt/mma.h``.

    Raises:
        MissingDependencyError: a header is in none of the installed wheels.
    """
    major = nvrtc_version().partition(".")[0]
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    places = (f"cu{major}/include", "cuda_runtime/include", "cuda_nvcc/include")
    folders = tuple(root / place for root in roots for place in places if (root / place).is_dir())
    for header in ("crt/mma.h" if header == "mma.h" else header for header in headers):
        if not any((folder / header).is_file() for folder in folders):
            raise MissingDependencyError(f"the CUDA header {header} is missing: {INSTALL_HEADERS}")
    return folders


@functools.cache
def _library() -> Any:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise MissingDependencyError(f"NVRTC is missing ({reason}): {INSTALL_NVRTC}") from error
    return nvrtc


@functools.cache
def _version() -> str:
    """The library tells only major and minor; the text that it generates names the build."""
    nvrtc = _library()
    major, minor = _call(nvrtc.nvrtcVersion())
    match = _TOOLS_VERSION.search(run_nvrtc("", "/version.cu", ["-arch=compute_80"]).ptx)
    return match.group(1) if match else f"{major}.{minor}"


def _call(result: tuple[Any, ...]) -> Any:
    """The value of a binding's ``(status, value…)``."""
    if int(result[0]) != 0:
        raise EvoEngineError(f"NVRTC failed: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def _read(size: Any, read: Any, program: Any) -> bytes:
    buffer = bytearray(_call(size(program)))
    if buffer:
        (status,) = read(program, buffer)
        _call((status, None))
    return bytes(buffer)


def _first_error(log: str, name: str) -> str:
    """The first line of a log that tells an error, without the leading slash of the text's name."""
    lines = [line.strip() for line in log.strip("\0").splitlines() if line.strip()]
    line = next((line for line in lines if _ERROR_LINE.search(line)), lines[0] if lines else "")
    return line.replace(name, name.lstrip("/"))[:_MAX_MESSAGE]
