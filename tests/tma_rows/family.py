"""The family ``tma_rows``, which has tensor maps: rendered, compiled, and as a record to export."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evoengine.export import ExportRecord
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DeviceInfo, Evaluation, Problem, Status
from evoengine.space.loader import load_space
from evoengine.target import get_target

FOLDER: Final = Path(__file__).parent
"""Folder for ``EVOENGINE_DATA``."""
TARGET: Final = get_target("h200")
ARCH: Final = "sm_90"
"""Architecture of all kernels; TMA is part of plain ``sm_90``."""


def source_of(problem: Problem, keys: int = 32, rows: int = 64) -> Source:
    """Renders the family.

    Args:
        problem: Problem to render for.
        keys: Keys of a tile.
        rows: Query rows of a CTA.
    """
    space = load_space(FOLDER / "search_spaces" / "tma_rows.toml")
    template = TemplateLibrary(FOLDER / "templates").load("tma_rows")
    return template.render(space.config({"KEYS": keys, "ROWS": rows}), problem, space, TARGET)


def kernel_of(problem: Problem, keys: int = 32, rows: int = 64) -> Kernel:
    """Compiles the family; see :func:`source_of`."""
    source = source_of(problem, keys, rows)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, ARCH))


def record_of(problem: Problem, keys: int = 32, rows: int = 64) -> ExportRecord:
    """Returns a row of the family to export; see :func:`source_of`."""
    source = source_of(problem, keys, rows)
    evaluation = Evaluation(
        config=source.config,
        status=Status.OK,
        source_hash=source.source_hash,
        template_hash=source.template_hash,
        source=source.text,
    )
    device = DeviceInfo("cuda", "NVIDIA H200", ARCH, False, "13.0", "13.0.88")
    return ExportRecord(problem, evaluation, device, source.launch, source.maxrregcount, "1")
