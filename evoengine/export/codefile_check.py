"""Checks an exported cubin or PTX file against its manifest: hash, entries, and that an installed driver loads it.

Needs only Python: run ``python best_test.py`` beside ``best.json``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

_SYMBOL_BYTES = 24
_SYMBOLS = 2


def symbols(elf: bytes) -> set[str]:
    """Returns the names in the symbol table of a cubin, which is a 64-bit ELF file.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        return _symbols(elf)
    except (LookupError, OverflowError, ValueError, struct.error) as error:
        raise ValueError(f"its ELF tables are damaged: {error}: export it again") from error


def _symbols(elf: bytes) -> set[str]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, *_ in headers:
        if kind == _SYMBOLS:
            names = headers[link][4]
            for at in range(offset, offset + length, _SYMBOL_BYTES):
                start = names + struct.unpack_from("<I", elf, at)[0]
                found.add(elf[start : elf.index(b"\0", start)].decode())
    return found


def load(data: bytes, entries: list[str]) -> str:
    """Loads the code on the first GPU and returns the outcome.

    Raises:
        ValueError: The driver rejects the code, or a kernel is missing.
    """
    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "not loaded: no NVIDIA GPU or driver"
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return "not loaded: no NVIDIA GPU or driver"
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context):
        return "not loaded: the driver created no context"
    status = cuda.cuModuleLoadData(ctypes.byref(module), data)
    if status:
        raise ValueError(f"the driver rejects it (error {status}): check that the GPU has the arch of the manifest")
    for entry in entries:
        function = ctypes.c_void_p()
        if cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()):
            raise ValueError(f"has no kernel {entry}")
    return "loaded by the driver"


def check(manifest: Path) -> str:
    """Checks one manifest and its file.

    Raises:
        ValueError: The file differs from the manifest.
    """
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    if Path(facts["file"]).name != facts["file"]:
        raise ValueError(f"{facts['file']!r} is not the name of a file beside the manifest")
    data = (manifest.parent / facts["file"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise ValueError(f"{facts['file']} differs from the manifest: wrong SHA-256")
    entries = [launch["entry"] for launch in facts["launches"]]
    if facts["file"].endswith(".cubin"):
        found = symbols(data)
        missing = [entry for entry in entries if entry not in found]
    else:
        missing = [entry for entry in entries if f".entry {entry}(".encode() not in data]
        data += b"\0"
    if missing:
        raise ValueError(f"{facts['file']} has no kernel {missing[0]}")
    return f"{facts['file']}: {', '.join(entries)} for {facts['arch']}; {load(data, entries)}"


def main() -> int:
    """Checks the manifest named on the command line, or the one beside this file."""
    here = Path(__file__)
    beside = here.with_name(f"{here.stem.removesuffix('_test')}.json")
    try:
        sys.stdout.write(f"PASS {check(Path(sys.argv[1]) if len(sys.argv) > 1 else beside)}\n")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        sys.stdout.write(f"FAIL {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
