"""Compilation of generated sources in a confined process of their own.

The process has no environment and no home. It cannot open a file or a socket, start a process, or use more than fixed
amounts of memory and time; all headers are passed in memory. Where the system permits user namespaces, it also has no
network, no rights, and an empty folder as its whole file system.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from evoengine import errors
from evoengine.errors import CompileError, EvoEngineError
from evoengine.kernel.compile.nvrtc import NvrtcOutput, header_dirs
from evoengine.system.temporary import TemporaryFolder

LIMIT_S: Final = 120.0
"""Default limit on the wall time of one compilation; the limit on CPU time is half of it."""
MEMORY_BYTES: Final = 6 << 30
"""Address space that a compilation may use in addition to that of the loaded libraries."""
MOST_ANSWER_BYTES: Final = 1 << 27
NAMESPACES: Final = "namespaces"
"""Name of the confinement that hides network and file system."""

_LENGTH: Final = struct.Struct("<Q")
_PARTS: Final = 3
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([\w./]+)[>"]', re.MULTILINE)
_KEPT: Final = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
"""Variables by which NVRTC may be found."""


@dataclass(frozen=True)
class Sandboxed:
    """Result of a compilation, and how its process was confined."""

    compilation: NvrtcOutput
    confinement: tuple[str, ...]
    """Names of the measures that the system permitted; :data:`NAMESPACES` is one of them."""


def run_sandboxed(text: str, name: str, options: Sequence[str], limit_s: float = LIMIT_S) -> Sandboxed:
    """Compiles one text in a confined process.

    Args:
        text: CUDA C++.
        name: File name in messages.
        options: NVRTC options without include paths.
        limit_s: Limit on the wall time, in seconds.

    Raises:
        CompileError: The text does not compile, or not within the limits.
        EvoEngineError: Any other error of :func:`~evoengine.kernel.compile.nvrtc.run_nvrtc`.
    """
    request = {
        "text": text,
        "name": name,
        "options": list(options),
        "headers": dict(_headers(tuple(_INCLUDE.findall(text)))),
        "cpu_s": max(1, int(limit_s / 2)),
        "memory_bytes": MEMORY_BYTES,
        "parent": os.getpid(),
        "path": [entry for entry in sys.path if entry],
    }
    with TemporaryFolder() as folder:
        answer, status = _ask(json.dumps(request).encode(), folder, limit_s)
    parts = _split(answer)
    if parts is None:
        raise CompileError(f"{name.lstrip('/')}: the compiler was stopped (status {status}): a limit was exceeded")
    head = json.loads(parts[0])
    if "error" in head:
        kind = getattr(errors, str(head["error"]), CompileError)
        proper = (
            isinstance(kind, type) and issubclass(kind, EvoEngineError) and kind.__init__ is EvoEngineError.__init__
        )
        raise (kind if proper else CompileError)(str(head["text"]))
    confinement = tuple(map(str, head["confinement"]))
    return Sandboxed(NvrtcOutput(parts[1], parts[2].decode(), str(head["log"])), confinement)


def _ask(request: bytes, folder: Path, limit_s: float) -> tuple[bytes, int]:
    """Runs the confined process; returns its answer and its exit status."""
    main = Path(__file__).with_name("sandbox_main.py")
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", str(main)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=kept,
    )
    try:
        answer, _ = process.communicate(request, timeout=limit_s)
    except subprocess.TimeoutExpired:
        answer = b""
    finally:
        process.kill()
        process.communicate()
    return answer, process.returncode


def _split(answer: bytes) -> list[bytes] | None:
    """Returns the parts of an answer; None if it is incomplete."""
    parts: list[bytes] = []
    at = 0
    while len(parts) < _PARTS:
        if len(answer) > MOST_ANSWER_BYTES or len(answer) < at + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(answer, at)
        at += _LENGTH.size
        parts.append(answer[at : at + length])
        at += length
    return parts if at == len(answer) else None


@cache
def _headers(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns headers by the names under which they are included, with all that they include themselves."""
    if not names:
        return ()
    folders = header_dirs()
    found: dict[str, str] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        inside = [folder / name for folder in folders if (folder / name).resolve().is_relative_to(folder.resolve())]
        path = next((file for file in inside if file.is_file()), None)
        if name in found or path is None:  # a header of the host's compiler, in a branch that NVRTC does not take
            continue
        found[name] = path.read_text("utf-8", errors="replace")
        for item in _INCLUDE.findall(found[name]):
            pending += [item, os.path.normpath(Path(name).parent / item)]
    plain = {Path(name).name: text for name, text in found.items()}  # as a header beside it includes it
    return tuple(sorted((plain | found).items()))
