"""Kernels that may serve a call: rows of a leaderboard or of a lockfile, as one record."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from evoengine.leaderboard.records import Record, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Problem

ROWS_PER_RANKING: Final = 3
"""Elites of each problem that are considered where there is no champion, or it cannot serve."""

_METHODS: Final = ("graph-warm", "eager-warm")
"""Objectives in the order in which their champions are preferred; others follow."""


@dataclass(frozen=True)
class KernelRow:
    """One measured kernel."""

    gpu: str
    """Name as the driver gives it."""
    arch: str
    problem: Problem
    config: Config
    template_hash: str
    source_hash: str
    code_hash: str
    nvrtc: str
    """Compiler of the machine code."""
    method: str
    """Objective that ranked it."""
    median_us: float
    baseline: str
    """Fastest backend of SDPA beside it; empty where none was timed."""
    baseline_us: float | None
    champion: bool
    row_id: int
    """In the leaderboard that it comes from."""
    space: str = ""
    """Text of the search-space file that it was searched with; empty for the family's own."""

    @property
    def speedup(self) -> float | None:
        """Baseline over kernel: below 1 torch's own attention is faster."""
        return None if self.baseline_us is None else self.baseline_us / self.median_us


def leaderboard_rows(board: Leaderboard, gpu: str | None = None) -> list[KernelRow]:
    """The champions and fastest elites that a leaderboard holds, measured ones only.

    Args:
        board: an open leaderboard.
        gpu: only of this GPU; None for all.
    """
    wanted = RowFilter(device_kind="cuda", predicted=False, device=gpu)
    kept = [row for row in board.rows(wanted) if row.champion or (row.rank or math.inf) <= ROWS_PER_RANKING]
    records = (board.get(row.id) for row in kept)
    single = (record for record in records if record.study.key.workload is None)  # a workload's time is a mean
    return sorted(map(_of_record, single), key=preference)


def preference(row: KernelRow) -> tuple[int, bool, float, int]:
    """Sort key among rows of one problem: the usual objective first, then the champion, then the fastest."""
    method = _METHODS.index(row.method) if row.method in _METHODS else len(_METHODS)
    return method, not row.champion, row.median_us, row.row_id


def runs_on(row: KernelRow, gpu: str, arch: str) -> bool:
    """Whether a row was measured on a GPU, with machine code of its own architecture."""
    return row.gpu == gpu and capability(row.arch) == capability(arch)


def capability(arch: str) -> str:
    """The digits of an architecture: a GPU of ``sm_90a`` runs kernels that were compiled for ``sm_90`` too."""
    return re.sub(r"\D", "", arch)


def _of_record(record: Record) -> KernelRow:
    evaluation, timing = record.evaluation, record.evaluation.timing
    assert timing is not None, "ranked rows have a time"
    return KernelRow(
        gpu=record.row.device,
        arch=record.row.arch,
        problem=record.study.key.problem,
        config=evaluation.config,
        template_hash=evaluation.template_hash,
        source_hash=evaluation.source_hash,
        code_hash=evaluation.code_hash,
        nvrtc=record.nvrtc,
        method=record.row.method,
        median_us=timing.median_us,
        baseline=timing.baseline,
        baseline_us=timing.baseline_us,
        champion=record.row.champion,
        row_id=record.row.id,
        space=dict(record.study.key.own_spaces).get(record.row.family, ""),
    )
