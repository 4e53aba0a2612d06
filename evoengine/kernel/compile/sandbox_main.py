"""Main program of the confined process that compiles one generated source; see :mod:`evoengine.kernel.compile.sandbox`.

It reads one request from its standard input, loads NVRTC, gives up its rights, compiles, and writes one answer.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION: Final = 0x20080522
_EMPTY: Final = 'extern "C" __global__ void empty() {}'


def main() -> None:
    """Answers the request on standard input."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    request: dict[str, Any] = json.load(sys.stdin.buffer)
    if os.getppid() != request["parent"]:
        return
    sys.path[:] = request["path"]
    from evoengine.errors import CompileError, EvoEngineError, MachineError
    from evoengine.kernel.compile.nvrtc import run_nvrtc

    try:
        arch = [option for option in request["options"] if option.startswith(("-arch", "--gpu-architecture"))]
        run_nvrtc(_EMPTY, "/empty.cu", arch)  # loads all libraries, which cannot be found after the confinement
        confinement = _confine(libc, request)
        try:
            made = run_nvrtc(request["text"], request["name"], request["options"], request["headers"])
        except MachineError as error:  # the limits are this process' own
            raise CompileError(f"the source needs what no kernel needs: {error}") from error
    except EvoEngineError as error:
        _answer({"error": type(error).__name__, "text": str(error)}, b"", b"")
    else:
        _answer({"confinement": confinement, "log": made.log}, made.cubin, made.ptx.encode())


def _confine(libc: ctypes.CDLL, request: Mapping[str, Any]) -> list[str]:
    """Gives up all rights that compiling does not need; returns the names of the measures that were permitted."""
    found = []
    used_bytes = _address_space_bytes()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC) == 0:
        found.append("namespaces")
    with contextlib.suppress(OSError):
        os.chroot(".")
        os.chdir("/")
        found.append("folder")
    if found[:1] == ["namespaces"] and "folder" not in found:
        found.remove("namespaces")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) == 0:
        found.append("capabilities")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    cpu_s, memory_bytes = request["cpu_s"], request["memory_bytes"]
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),  # the three that are open: neither a file nor a socket can be opened
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, used_bytes + memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))
    return [*found, "limits"]


def _address_space_bytes() -> int:
    """Size of the process so far: with a GPU's driver, libraries reserve far more addresses than they use."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _answer(head: Mapping[str, Any], cubin: bytes, ptx: bytes) -> None:
    output = sys.stdout.buffer
    for part in (json.dumps(head).encode(), cubin, ptx):
        output.write(struct.pack("<Q", len(part)) + part)
    output.flush()


if __name__ == "__main__":
    main()
