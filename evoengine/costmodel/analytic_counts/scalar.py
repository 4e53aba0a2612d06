"""Analytic counts of the scalar family: one CTA per query row, whose lanes share the keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.family_counts import (
    COPY_LINES,
    Names,
    Setting,
    lines_clocks,
    live_registers,
    mufu_clocks,
    per_config,
)
from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK
from evoengine.costmodel.latency import SPILLED_BYTES, WAVEFRONT_BYTES, Demand, Numbers, Work
from evoengine.kernel.resources import WARP
from evoengine.model import Problem, Value

_KEY_INSTRUCTIONS: Final = 24
"""Instructions per key, without its products: index, bounds, maximum, probability."""
_STEP_INSTRUCTIONS: Final = 24
_CTA_INSTRUCTIONS: Final = 200


class ScalarCounts:
    """Counts for the shipped space."""

    needed: ClassVar = frozenset(
        (
            "THREADS",
            "MERGE",
            "LANES_PER_KEY",
            "KEYS_PER_STEP",
            "VECTOR",
            "STAGING",
            "STAGES",
            "CACHE_OP",
            "MIN_CTAS",
            "TILE_KEYS",
            "DIMS",
            "PARTIALS",
            "SMEM_BYTES",
            "LIVE_REGISTERS",
            "ROW_HALVES",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {}
    partition: ClassVar[tuple[str, ...]] = ("THREADS", "LANES_PER_KEY", "KEYS_PER_STEP", "STAGING")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        return live_registers(names, self._setting.target)

    def demand(self, names: Names, spilled: Numbers) -> Demand:
        """Computes the demand of the main launch."""
        setting, problem = self._setting, self._setting.problem
        ctas = problem.seq_q * problem.heads * problem.batch
        keys = problem.seen_pairs / (problem.seq_q * problem.batch)
        steps = np.ceil(keys / names["TILE_KEYS"])
        window = problem.seq_kv if problem.window_left is None else problem.window_left + 1
        most = min(problem.seq_kv, window)  # keys of the last row under a causal mask
        busiest = np.ceil(most / names["TILE_KEYS"]) / steps if problem.causal else 1.0
        row_bytes = problem.head_dim * problem.dtype.bytes
        from_l1 = (names["STAGING"] == "direct") & (names["CACHE_OP"] == "ca")
        loop, edges = _loop(names, setting, steps), _edges(names, setting)
        return Demand(
            ctas=ctas,
            warps_per_cta=names["THREADS"] / WARP,
            loop=loop,
            edges=edges,
            spill_bytes=SPILLED_BYTES * spilled,
            busiest_cta=busiest,
            busiest_warp=busiest,
            l2_bytes=np.where(from_l1, 0.0, 2 * row_bytes * keys * ctas),
            code=loop.issue / np.maximum(1, steps) + edges.issue,
        )

    def extra_launches_us(self, names: Names) -> Numbers:
        return 0.0


def _loop(names: Names, setting: Setting, steps: Numbers) -> Work:
    """Computes a warp's work in the loop over its keys; each step waits for both K and V."""
    problem, target, constants = setting.problem, setting.target, setting.constants
    keys, dims, lanes, vector = (names[name] for name in ("KEYS_PER_STEP", "DIMS", "LANES_PER_KEY", "VECTOR"))
    staged = names["STAGING"] == "shared"
    loads = 2 * keys * dims / vector
    load_bytes = WARP * vector * problem.dtype.bytes
    tile_bytes = 2 * names["TILE_KEYS"] * problem.head_dim * problem.dtype.bytes
    copies = np.where(staged, tile_bytes / 16 / names["THREADS"], 0.0)
    shuffles = keys * np.log2(lanes)
    issue = keys * (4 * dims + _KEY_INSTRUCTIONS) + 2 * shuffles + 2 * loads + dims + _STEP_INSTRUCTIONS + 6 * copies
    mufu = mufu_clocks((keys + 1) * steps, target)
    load_lines = per_config(_load_lines, lanes, vector, names["ROW_HALVES"])
    lines = np.where(staged, loads * load_lines + COPY_LINES * copies, 0.0)
    requests = np.where(staged, copies, loads)
    request_clocks = np.maximum(constants.request, np.where(staged, WARP * 16, load_bytes) / SM_BYTES_PER_CLK)
    return Work(
        phases=2.0 * steps,
        mufu=mufu,
        lone_mufu=mufu,
        issue=issue * steps,
        shared=lines_clocks((lines + shuffles) * steps, target),
        memory=request_clocks * requests * steps,
    )


@lru_cache(1024)
def _load_lines(lanes: int, vector: int, pitch_halves: int) -> int:
    """Computes the wavefronts of a warp's load from the banks that its lanes' words fall into.

    Args:
        lanes: Lanes that share one key row.
        vector: Elements per lane.
        pitch_halves: Row pitch in 16-bit elements.
    """
    words = vector // 2
    together = WARP // max(1, words)  # lanes whose accesses form one 128-byte phase
    total = 0
    for first in range(0, WARP, together):
        banks: dict[int, set[int]] = {}
        for lane in range(first, first + together):
            start = (lane // lanes * pitch_halves + lane % lanes * vector) // 2
            for word in range(start, start + words):
                banks.setdefault(word % 32, set()).add(word)
        total += max(map(len, banks.values()))
    return total


def _edges(names: Names, setting: Setting) -> Work:
    """Computes the work outside the loop: load of the query, merge of the lane groups' results, store."""
    merged = names["PARTIALS"] * setting.problem.head_dim / names["THREADS"]
    rounds = np.where(names["MERGE"] == "shuffle", np.log2(WARP / names["LANES_PER_KEY"]), 0.0)
    return Work(
        phases=2.0,
        issue=_CTA_INSTRUCTIONS + 6 * names["DIMS"] + 8 * merged + rounds * (4 * names["DIMS"] + 12),
        shared=lines_clocks(2 * merged * WARP * 4 / WAVEFRONT_BYTES, setting.target),
        memory=2 * setting.constants.request,
    )


COUNTS: Final = ScalarCounts
