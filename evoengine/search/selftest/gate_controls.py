"""Control kernels of the self-test: random valid configs of every family, for problems that cover every feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, DType, Problem
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space
from evoengine.target import Target

PROBLEMS: Final[Mapping[str, Problem]] = {
    "plain": Problem(1, 2, 96, 64),
    "causal": Problem(1, 2, 130, 64, causal=True),
    "bf16": Problem(1, 2, 64, 64, dtype=DType.BF16, lse=True),
    "gqa-d128": Problem(2, 4, 70, 128, kv_heads=2, causal=True),
    "d8": Problem(1, 1, 200, 8, causal=True),
    "d32": Problem(1, 4, 96, 32),
    "d40": Problem(1, 2, 70, 40),
    "d72-bf16": Problem(1, 2, 64, 72, dtype=DType.BF16, lse=True),
    "d96": Problem(1, 2, 128, 96),
    "d256": Problem(1, 1, 90, 256, causal=True),
    "softcap-d200": Problem(1, 2, 80, 200, softcap=15.0),
    "left": Problem(1, 2, 150, 64, causal=True, window_left=33, lse=True),
    "both-d32": Problem(1, 2, 150, 32, window_left=20, window_right=15),
    "right-d96": Problem(1, 2, 100, 96, window_right=40, sink=True),
    "sink-mqa": Problem(1, 4, 128, 64, kv_heads=1, causal=True, sink=True, lse=True),
    "decode": Problem(1, 8, 1, 128, kv_heads=2, seq_kv=700, lse=True),
    "few-queries": Problem(2, 8, 4, 64, kv_heads=2, seq_kv=500, causal=True),
    "few-queries-bf16": Problem(
        1, 4, 16, 80, kv_heads=2, seq_kv=600, dtype=DType.BF16, causal=True, softcap=30.0, sink=True
    ),
    "packed": Problem(
        4, 2, 90, 64, seq_kv=200, causal=True, lse=True, lengths_q=(90, 0, 17, 64), lengths_kv=(96, 30, 200, 0)
    ),
    "everything": Problem(
        3, 4, 40, 48, kv_heads=2, seq_kv=260, window_left=70, window_right=5, softcap=8.0, sink=True, lse=True,
        lengths_q=(40, 1, 33), lengths_kv=(260, 90, 12),
    ),
    "many-tiles": Problem(2, 16, 256, 32, causal=True),
}  # fmt: skip
"""Problems by name, small enough for the emulator."""


def draw_controls(families: tuple[str, ...], target: Target, count: int, seed: int) -> list[tuple[str, Config]]:
    """Draws valid configs, spread evenly over problems, and for each problem over the families that support it.

    Args:
        families: Families to draw from.
        target: Target GPU, with the architecture to compile for.
        count: Number of configs.
        seed: Random seed.

    Returns:
        Names of problems with a config each, grouped by problem; nothing if no family supports the architecture.
    """
    rng = np.random.default_rng(seed)
    library = TemplateLibrary(*data_dirs("templates"))
    templates = [library.load(family) for family in families]
    spaces = {family: find_space(family) for family in families}
    supported = {
        name: [template.family for template in templates if template.supports(problem, target.arch) is None]
        for name, problem in PROBLEMS.items()
    }
    usable = [(name, able) for name, able in supported.items() if able]
    drawn = []
    for index, (name, able) in enumerate(usable):
        problem = PROBLEMS[name]
        share = count * (index + 1) // len(usable) - count * index // len(usable)
        taken = [able[(index + turn) % len(able)] for turn in range(share)]
        valid = {family: spaces[family].build(problem, target) for family in set(taken)}
        drawn += [(name, valid[family].sample(rng)) for family in taken]
    return drawn
