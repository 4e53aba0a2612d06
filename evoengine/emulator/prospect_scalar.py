"""Analytic counts of the family scalar: a CTA for each query row, whose lanes share the keys."""

from __future__ import annotations

import functools
import math
from typing import Final

from evoengine.emulator.latency import Demand, Work
from evoengine.emulator.prospect_names import (
    COPY_LINES,
    LINE_BYTES,
    Names,
    Setting,
    lines_clocks,
    mufu_clocks,
)
from evoengine.kernel.resources import WARP
from evoengine.model import Problem

_KEY_INSTRUCTIONS: Final = 24
"""Of a key besides its products: index, bounds, maximum, probability."""
_STEP_INSTRUCTIONS: Final = 24
_CTA_INSTRUCTIONS: Final = 200


class ScalarCounts:
    """Of the space as it ships."""

    needed = frozenset(
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
    cut = ("THREADS", "LANES_PER_KEY", "KEYS_PER_STEP", "STAGING")

    def covers(self, problem: Problem) -> bool:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        return not problem.packed

    def registers(self, names: Names) -> tuple[int, int]:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        cap = min(names["max_regs_per_thread"], names["regs_per_sm"] // (names["THREADS"] * names["MIN_CTAS"]) // 8 * 8)
        return min(names["LIVE_REGISTERS"], cap), max(0, names["LIVE_REGISTERS"] - cap)

    def demand(self, names: Names, setting: Setting) -> Demand:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        problem = setting.problem
        ctas = problem.seq_q * problem.heads * problem.batch
        keys = problem.seen_pairs / (problem.seq_q * problem.batch)
        steps = math.ceil(keys / names["TILE_KEYS"])
        busiest = math.ceil(problem.seq_kv / names["TILE_KEYS"]) / steps if problem.causal else 1.0
        row_bytes = problem.head_dim * problem.dtype.bytes
        from_l1 = names.text("STAGING") == "direct" and names.text("CACHE_OP") == "ca"
        loop, edges = _loop(names, setting, steps), _edges(names, setting)
        return Demand(
            ctas=ctas,
            warps_per_cta=names["THREADS"] / WARP,
            loop=loop,
            edges=edges,
            spill_bytes=8 * self.registers(names)[1],
            busiest_cta=busiest,
            busiest_warp=busiest,
            l2_bytes=0.0 if from_l1 else 2 * row_bytes * keys * ctas,
            code=loop.issue / max(1, steps) + edges.issue,
        )

    def further_us(self, names: Names, setting: Setting) -> float:
        """Nothing."""
        return 0.0


def _loop(names: Names, setting: Setting, steps: int) -> Work:
    """A warp's work on its keys; both tensors of a step are waited for."""
    problem, target, constants = setting.problem, setting.target, setting.constants
    keys, dims = names["KEYS_PER_STEP"], names["DIMS"]
    staged = names.text("STAGING") == "shared"
    loads = 2 * keys * dims / names["VECTOR"]
    load_bytes = WARP * names["VECTOR"] * problem.dtype.bytes
    copies = 2 * names["TILE_KEYS"] * problem.head_dim * problem.dtype.bytes / 16 / names["THREADS"] if staged else 0.0
    shuffles = keys * math.log2(names["LANES_PER_KEY"])
    issue = keys * (4 * dims + _KEY_INSTRUCTIONS) + 2 * shuffles + 2 * loads + dims + _STEP_INSTRUCTIONS + 6 * copies
    mufu = mufu_clocks((keys + 1) * steps, target)
    lines = 0.0
    if staged:
        lines = loads * _load_lines(names["LANES_PER_KEY"], names["VECTOR"], names["ROW_HALVES"]) + COPY_LINES * copies
    requests = copies if staged else loads
    request_clocks = max(constants.request, (WARP * 16 if staged else load_bytes) / 64)
    return Work(
        phases=2.0 * steps,
        mufu=mufu,
        lone_mufu=mufu,
        issue=issue * steps,
        shared=lines_clocks((lines + shuffles) * steps, target),
        memory=request_clocks * requests * steps,
    )


@functools.cache
def _load_lines(lanes: int, vector: int, pitch_halves: int) -> int:
    """Wavefronts of a warp's load, each team from a row of its own: by the banks that its lanes' words fall into."""
    words = vector // 2
    together = WARP // max(1, words)  # lanes whose accesses are served at a time: 128 bytes
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
    """The query in; the teams' results merged, and out."""
    merged = names["PARTIALS"] * setting.problem.head_dim / names["THREADS"]
    rounds = math.log2(WARP / names["LANES_PER_KEY"]) if names.text("MERGE") == "shuffle" else 0.0
    return Work(
        phases=2.0,
        issue=_CTA_INSTRUCTIONS + 6 * names["DIMS"] + 8 * merged + rounds * (4 * names["DIMS"] + 12),
        shared=lines_clocks(2 * merged * WARP * 4 / LINE_BYTES, setting.target),
        memory=2 * setting.constants.request,
    )
