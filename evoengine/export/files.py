"""Export formats and the files that each consists of."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.errors import UsageError
from evoengine.export.cu import export_cu
from evoengine.export.facts import support_code
from evoengine.export.header import export_header
from evoengine.export.manifest import manifest
from evoengine.export.recompile import recompile
from evoengine.export.record import ExportRecord
from evoengine.export.torch_module import BuiltRecord, export_torch

FORMATS: Final = ("cu", "torch", "header", "cubin", "ptx")
"""Self-checking program, Python module, C++ header, machine code with a manifest, PTX with a manifest."""
OF_MANY: Final = ("torch", "header")
"""Formats that hold several kernels and choose one per call."""


@dataclass(frozen=True)
class ExportFile:
    """One file of an export."""

    name: str
    content: str | bytes


def export_files(
    kind: str, records: Sequence[ExportRecord], name: str, cache_dir: Path | None
) -> tuple[ExportFile, ...]:
    """Returns the files of an export, beginning with the one that the user named.

    Args:
        kind: One of :data:`FORMATS`.
        records: Rows to export; several only for :data:`OF_MANY`.
        name: Name of the first file.
        cache_dir: Folder of the compile cache; None disables it.

    Raises:
        UsageError: The format is unknown or holds one kernel only, or a row cannot be exported.
    """
    if kind not in FORMATS:
        raise UsageError(f"unknown format '{kind}': choose one of {', '.join(FORMATS)}")
    if len(records) > 1 and kind not in OF_MANY:
        raise UsageError(f"format {kind} holds one kernel, not {len(records)}: choose {' or '.join(OF_MANY)}")
    if kind == "cu":
        return (ExportFile(name, export_cu(records[0])),)
    if kind == "header":
        return (ExportFile(name, export_header(records, name)),)
    stem = Path(name).stem
    if kind == "torch":
        if not stem.isidentifier() or keyword.iskeyword(stem):
            raise UsageError(
                f"'{name}' is not a valid module name: use a Python identifier that is no keyword, such as best.py"
            )
        built = [BuiltRecord(record, recompile(record, cache_dir)) for record in records]
        return (ExportFile(name, export_torch(built, stem)),)
    return _code_files(kind, records[0], name, stem, cache_dir)


def _code_files(
    kind: str, record: ExportRecord, name: str, stem: str, cache_dir: Path | None
) -> tuple[ExportFile, ...]:
    if Path(name).suffix != f".{kind}":
        raise UsageError(f"'{name}' must end in .{kind}: its manifest and its check are written beside it")
    binary = recompile(record, cache_dir)
    data = binary.cubin if kind == "cubin" else binary.ptx.encode()
    check = support_code("codefile_check.py")
    return (
        ExportFile(name, data),
        ExportFile(f"{stem}.json", manifest(record, binary, name, data)),
        ExportFile(f"{stem}_test.py", check),
    )
