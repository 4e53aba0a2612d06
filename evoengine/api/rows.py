"""Rows of measured kernels, from a leaderboard or a lockfile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Problem

ROWS_PER_RANKING: Final = 3
"""Number of elites per ranking that are considered besides the champion."""

_METHODS: Final = ("graph-warm", "eager-warm")
"""Objectives in order of preference; others follow."""


@dataclass(frozen=True)
class KernelRow:
    """One measured kernel."""

    gpu: str
    """GPU name reported by the driver."""
    arch: str
    problem: Problem
    config: Config
    template_hash: str
    source_hash: str
    code_hash: str
    nvrtc: str
    """Version of NVRTC that compiled the machine code."""
    method: str
    """Objective of its ranking."""
    median_us: float
    baseline: str
    """Fastest SDPA backend in its benchmark; empty if none was timed."""
    baseline_us: float | None
    champion: bool
    row_id: int
    """Row id in its leaderboard."""
    space: str = ""
    """Text of the search-space file, if it is not the packaged one; else empty."""

    @property
    def speedup(self) -> float | None:
        """Baseline time over kernel time; below 1 torch is faster."""
        return None if self.baseline_us is None else self.baseline_us / self.median_us


def leaderboard_rows(board: Leaderboard, gpu: str | None = None) -> list[KernelRow]:
    """Returns the measured champions and fastest elites of a leaderboard.

    Args:
        board: Open leaderboard.
        gpu: Name of the GPU; None for all GPUs.
    """
    wanted = RowFilter(device_kind="cuda", predicted=False, device=gpu)
    records = _leading(board, board.rows(wanted))
    single = (record for record in records if record.study.key.workload is None)  # a workload's time is a mean
    return sorted(map(row_of, single), key=preference)


def _leading(board: Leaderboard, rows: Iterable[Row]) -> Iterator[Record]:
    """Yields the champion and the best ranks of each ranking, damaged rows left out.

    Args:
        board: Leaderboard of the rows.
        rows: Correct rows by ranking, best first.
    """
    ranks: dict[tuple[object, ...], set[int | None]] = {}
    for row in rows:
        taken = ranks.setdefault((row.problem, row.device, row.arch, row.method), set())
        if row.rank is None or not (row.champion or row.rank in taken or len(taken) < ROWS_PER_RANKING):
            continue
        for record in board.records((row.id,)):
            taken.add(row.rank)
            yield record


def preference(row: KernelRow) -> tuple[int, bool, float, int]:
    """Returns the sort key of rows of one problem: by objective, then champion, then time."""
    method = _METHODS.index(row.method) if row.method in _METHODS else len(_METHODS)
    return method, not row.champion, row.median_us, row.row_id


def best_rows(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Returns the row that ``attention`` would choose, for each problem on each GPU."""
    best: dict[tuple[str, str, str], KernelRow] = {}
    for row in rows:
        held = best.setdefault(slot(row), row)
        if preference(row) < preference(held):
            best[slot(row)] = row
    return [best[key] for key in sorted(best)]


def slot(row: KernelRow) -> tuple[str, str, str]:
    """Returns what a lockfile has one row for: GPU, architecture and problem."""
    return row.gpu, capability(row.arch), row.problem.key


def runs_on(row: KernelRow, gpu: str, arch: str) -> bool:
    """Returns whether a row was measured on a GPU of this name, with machine code for its architecture."""
    return row.gpu == gpu and capability(row.arch) == capability(arch)


def capability(arch: str) -> str:
    """Returns the digits of an architecture, because a GPU of ``sm_90a`` also runs kernels compiled for ``sm_90``."""
    return re.sub(r"\D", "", arch)


def row_of(record: Record) -> KernelRow:
    """Returns the kernel of a measured row."""
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
