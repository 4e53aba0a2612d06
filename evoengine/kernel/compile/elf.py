"""Identity of machine code, read from a cubin, which is a 64-bit ELF file."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SECTION_TABLE_OFFSET: Final = 0x28
_SECTION_TABLE_SHAPE: Final = 0x3A
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NO_BITS: Final = 8
_CODE_PREFIXES: Final = (".text.", ".nv.constant", ".nv.shared")
"""Instructions, constants and static shared memory. ``.nv.info`` is excluded: it repeats the requested register cap, so
equal code would have different hashes under two caps. Debug and line sections depend on the text, not on the code."""
_GLOBAL_PREFIX: Final = ".nv.global"
_ADDRESS_BANK: Final = ".nv.constant4"
"""Constant bank that holds the addresses of global variables."""


@dataclass(frozen=True)
class Section:
    """One section of an ELF file; ``data`` is empty for storage without contents, ``size`` is not."""

    name: str
    size: int
    data: bytes


def sections(elf: bytes) -> Iterator[Section]:
    """Yields the sections of a little-endian 64-bit ELF file, in file order.

    Raises:
        ValueError: The bytes are not such a file, or it is truncated.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian 64-bit ELF file")
    try:
        (table,) = struct.unpack_from("<Q", elf, _SECTION_TABLE_OFFSET)
        entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, _SECTION_TABLE_SHAPE)
        headers = [_SECTION.unpack_from(elf, table + index * entry_bytes) for index in range(count)]
        names_offset = headers[names_index][4]
        for name_offset, kind, _flags, _address, offset, size, *_rest in headers:
            start = names_offset + name_offset
            name = elf[start : elf.index(b"\0", start)].decode()
            yield Section(name, size, b"" if kind == _NO_BITS else elf[offset : offset + size])
    except (struct.error, IndexError) as error:
        raise ValueError("a truncated ELF file") from error


def hash_code(cubin: bytes, *facts: int | str, with_globals: bool) -> str:
    """Returns the identity of a cubin's machine code, 16 hex digits.

    Args:
        cubin: ELF file.
        facts: Further properties that distinguish launches of equal code: architecture, registers, threads, shared
            memory.
        with_globals: Whether the code uses global variables. NVRTC keeps unused ones, such as every ``constexpr`` at
            namespace scope; those must not change the hash.
    """
    digest = hashlib.sha256(repr(facts).encode())
    for section in sorted(sections(cubin), key=lambda item: item.name):
        of_globals = section.name.startswith((_GLOBAL_PREFIX, _ADDRESS_BANK))
        if with_globals if of_globals else section.name.startswith(_CODE_PREFIXES):
            digest.update(f"{section.name}\0{section.size}\0".encode())
            digest.update(section.data)
    return digest.hexdigest()[:16]
