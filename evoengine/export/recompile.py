"""Recompilation of a row from its stored source, with a check that the machine code is unchanged."""

from __future__ import annotations

from pathlib import Path

from evoengine.errors import UsageError
from evoengine.export.record import ExportRecord
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Binary, Source
from evoengine.search.candidate.screening import screened_kernel


def recompile(record: ExportRecord, cache_dir: Path | None) -> Binary:
    """Compiles a row for the architecture that it was evaluated on. The same NVRTC yields the same machine code.

    Args:
        record: Row to compile.
        cache_dir: Folder of the compile cache; None disables it.

    Raises:
        UsageError: The row has no source, or its source now yields other machine code than was evaluated.
        CompileError: The source no longer compiles.
        ScreenError: The source is untrusted, and contains what no generated kernel may contain.
    """
    evaluation = record.evaluation
    if not evaluation.source:
        raise UsageError(f"row {record.row_id} has no stored source: it ended as {evaluation.status.value}")
    source = Source(
        config=evaluation.config,
        text=evaluation.source,
        source_hash=evaluation.source_hash,
        template_hash=evaluation.template_hash,
        maxrregcount=record.maxrregcount,
        launch=record.launch,
        untrusted=record.untrusted,
    )
    binary = screened_kernel(Compiler(cache_dir), source, record.device.arch).binary
    if evaluation.code_hash and binary.code_hash != evaluation.code_hash:
        raise UsageError(
            f"row {record.row_id}: its source now compiles to machine code {binary.code_hash}, not to "
            f"{evaluation.code_hash}, which NVRTC {record.device.nvrtc} generated and the parity gate checked: search "
            "again with this NVRTC, or use export --format cu, which checks itself"
        )
    return binary
