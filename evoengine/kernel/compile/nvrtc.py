"""The NVRTC library, called through ``cuda.bindings``: CUDA C++ to cubin, PTX and log. Needs no GPU and no driver."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import CompileError, EvoEngineError, MissingDependencyError, UsageError
from evoengine.system.machine_faults import machine_fault, machine_fault_in
from evoengine.system.stop_signals import stop_signals_kept

INSTALL_NVRTC: Final = "python -m pip install 'cuda-bindings==13.0.*' 'nvidia-cuda-nvrtc==13.0.*'"
INSTALL_HEADERS: Final = "python -m pip install 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'"
INSTALL_CCCL: Final = "python -m pip install 'nvidia-cuda-cccl==13.0.*'"
ANY_HEADER: Final = "cuda_fp16.h"
_TOOLS_VERSION: Final = re.compile(r"V(\d+\.\d+\.\d+)")
_ERROR_LINE: Final = re.compile(r"(?:^|\s)(?:fatal )?error\s*:", re.IGNORECASE)
_COMPILE_TIME: Final = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)
"""The only line of ptxas' report that differs from run to run."""
_MAX_MESSAGE: Final = 300
_LOADED: Final = Path("/proc/self/maps")
"""Lists the files of all libraries that are loaded."""
_INCLUDES: Final = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.MULTILINE)
_CCCL_MISSING: Final = re.compile(r'cannot open source file "(?:nv|cuda|cub|thrust)/')
"""Error about a missing header of CCCL, which CUDA's own headers, such as ``cooperative_groups.h``, include."""


@dataclass(frozen=True)
class NvrtcOutput:
    """Output of one NVRTC run."""

    cubin: bytes
    ptx: str
    log: str


def nvrtc_version() -> str:
    """Returns the full version of the NVRTC in use, for example ``13.0.88``.

    Raises:
        MissingDependencyError: NVRTC is not installed.
    """
    return _version()


def supported_archs() -> tuple[int, ...]:
    """Returns the compute capabilities that this NVRTC compiles for, such as 80 for ``sm_80``.

    Raises:
        MissingDependencyError: NVRTC is not installed.
    """
    nvrtc = _library()
    return tuple(int(item) for item in _call(nvrtc.nvrtcGetSupportedArchs()))


def run_nvrtc(text: str, name: str, options: Sequence[str], headers: Mapping[str, str] | None = None) -> NvrtcOutput:
    """Compiles one text.

    Args:
        text: CUDA C++.
        name: File name in messages and line information. NVRTC prepends the working directory to a relative name in the
            PTX, so an absolute one keeps the output independent of it.
        options: NVRTC options; one of them names the architecture.
        headers: Texts of headers by the names under which they are included; they need no files.

    Raises:
        CompileError: The text does not compile; the message is the first error.
        MachineError: NVRTC ran out of memory, or a part of it cannot be loaded.
        UsageError: NVRTC rejects an option.
        MissingDependencyError: NVRTC is not installed.
    """
    nvrtc = _library()
    given = headers or {}
    names, texts = [key.encode() for key in given], [value.encode() for value in given.values()]
    program = _call(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), len(given), texts, names))
    try:
        with stop_signals_kept():  # handlers of NVRTC 13.0 end the process silently
            (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise UsageError(_first_error(log, name))
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            message = _first_error(log, name) or result.name
            raise machine_fault_in(f"NVRTC: {message}") or machine_fault_in(result.name) or CompileError(message)
        return NvrtcOutput(
            cubin=_read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
            ptx=_read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode(),
            log=_COMPILE_TIME.sub("", log).rstrip("\0 \n"),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def has_other_users() -> bool:
    """Whether another library that compiles with NVRTC is loaded in this process: cuDNN, which PyTorch uses.

    Options of its compilations stay in NVRTC 13.0.88: the machine code of kernels that this process compiles after
    cuDNN's first one differs from that of any other process (seen with cuDNN of PyTorch 2.11 on an H200).
    """
    try:
        return "/libcudnn" in _LOADED.read_text("utf-8", errors="replace")
    except OSError:
        return False


def compile_ptx(text: str, arch: str = "sm_89", *options: str, name: str = "kernel.cu") -> str:
    """Compiles a CUDA source to PTX with line information.

    Do not pass ``-G`` in a process that also compiles candidates: NVRTC 13.0.88 then generates different machine code
    for every later source in the process.

    Args:
        text: CUDA C++; the include path contains CUDA's headers.
        arch: Architecture, for example ``sm_89``.
        options: Further NVRTC options, such as ``-DN=4`` or ``--use_fast_math``.
        name: File name in messages.

    Raises:
        CompileError: The text does not compile.
        UsageError: NVRTC rejects an option.
        MissingDependencyError: NVRTC, or a header that the text includes, is not installed.
    """
    fixed = [f"-arch={arch.replace('sm_', 'compute_')}", "-lineinfo", "-default-device"]
    standard = [] if any("std=" in option for option in options) else ["--std=c++17"]
    folders = [f"--include-path={folder}" for folder in header_dirs()] if _INCLUDES.search(text) else []
    return run_nvrtc(text, f"/{name}", [*fixed, *standard, *folders, *options]).ptx


def header_dirs(headers: Collection[str] = (ANY_HEADER,)) -> tuple[Path, ...]:
    """Returns the folders with the CUDA headers of NVRTC's major version, from the pip wheels.

    Args:
        headers: Required headers, as included. For ``mma.h``, which only includes ``crt/mma.h``, the latter is
            required.

    Raises:
        MissingDependencyError: A header is in none of the installed wheels.
    """
    major = nvrtc_version().partition(".")[0]
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    wheels = ("cuda_runtime", "cuda_nvcc", "cuda_cccl")
    names = (f"cu{major}/include", f"cu{major}/include/cccl", *(f"{wheel}/include" for wheel in wheels))
    folders = tuple(root / name for root in roots for name in names if (root / name).is_dir())
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
        if (fault := machine_fault(error)) is not None:
            raise fault from error
        reason = " ".join(str(error).split())[:120]
        raise MissingDependencyError(f"NVRTC is missing ({reason}): {INSTALL_NVRTC}") from error
    return nvrtc


@functools.cache
def _version() -> str:
    """Returns the version with the build number, which only the generated PTX contains."""
    nvrtc = _library()
    major, minor = _call(nvrtc.nvrtcVersion())
    match = _TOOLS_VERSION.search(run_nvrtc("", "/version.cu", ["-arch=compute_80"]).ptx)
    return match.group(1) if match else f"{major}.{minor}"


def _call(result: tuple[Any, ...]) -> Any:
    """Returns the value of a binding's ``(status, value…)``, or raises if the status is an error."""
    if int(result[0]) != 0:
        raise machine_fault_in(result[0].name) or EvoEngineError(f"NVRTC failed: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def _read(size: Any, read: Any, program: Any) -> bytes:
    buffer = bytearray(_call(size(program)))
    if buffer:
        (status,) = read(program, buffer)
        _call((status, None))
    return bytes(buffer)


def _first_error(log: str, name: str) -> str:
    """Returns the first error line of a log, without the leading slash of the file name."""
    lines = [line.strip() for line in log.strip("\0").splitlines() if line.strip()]
    line = next((line for line in lines if _ERROR_LINE.search(line)), lines[0] if lines else "")
    message = line.replace(name, name.lstrip("/"))[:_MAX_MESSAGE]
    return f"{message}: {INSTALL_CCCL}" if _CCCL_MISSING.search(line) else message
