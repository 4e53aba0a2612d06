"""Synthetic landscapes: one computed by a formula with a known optimum, and one in which all configs are equal.

They serve tests, the null control and the comparison of strategies. Their device is named ``synthetic``, and so are the
rows of a search on them. Their times count as measured, so that noise can be added and champions are re-measured.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from evoengine import __version__
from evoengine.landscape.file import keyed
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Resources, Status, Timing
from evoengine.space.language.rules import Constraint
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal, Tunable

METHOD: Final = "synthetic"

_PROBLEM: Final = Problem(1, 8, 512, 64)
_RESOURCES: Final = Resources(96, 0, 0, 0, 32768, 128)
_DEVICE: Final = DeviceInfo("synthetic", "synthetic", "sm_89", predicted=False)
_NULL_US: Final = 10.0
"""Time of each config of the null landscape."""
_FAILING: Final = 0.04
"""Share of the configs that fail, chosen by a hash."""
_RUGGED: Final = 0.02
"""Largest relative change of a time by the hash of the config."""


def analytical_landscape(seed: int = 0) -> Landscape:
    """Returns 14,868 configs with the difficulties of kernel tuning: interactions, a rugged surface, failures.

    The time is a product: valleys over the tile sizes that shift with pipeline depth and number of warps, a penalty for
    bank conflicts that padding reduces, a penalty for each wrong switch, and up to two per cent from a hash.

    Args:
        seed: Seed of the valleys' position and of the hash.
    """
    tunables: tuple[Tunable, ...] = (
        Ordinal("TILE_M", (16, 32, 64, 128, 256), "rows", "query tile"),
        Ordinal("TILE_N", (16, 32, 48, 64, 96, 128), "keys", "key tile"),
        Ordinal("WARPS", (1, 2, 4, 8), "warps", "warps"),
        Ordinal("STAGES", (1, 2, 3, 4), "tiles", "pipeline depth"),
        Ordinal("PAD", (0, 8, 16), "halves", "padding"),
        Categorical("LAYOUT", ("plain", "swizzle", "split"), "layout", "of shared memory"),
        Boolean("UNROLL", (False, True), "choice", "unroll the loop"),
        Ordinal("CTAS", (1, 2, 3), "CTAs", "per SM"),
    )
    constraints = (
        Constraint("rows_per_warp", "TILE_M >= 16 * WARPS", "a warp holds sixteen rows"),
        Constraint("memory", "TILE_N * STAGES * CTAS <= 512", "shared memory"),
    )
    space = SearchSpace("synthetic", "a formula over tile sizes", tunables, (), constraints)
    shift = np.random.default_rng(seed).uniform(-0.5, 0.5, size=4)
    valid = (config for config in _all_configs(space) if _obeys(config))
    return _landscape(space, valid, lambda config: _formula_us(config, shift, seed), f"analytical, seed {seed}")


def null_landscape(count: int = 1024) -> Landscape:
    """Returns configs that all stand for one kernel and take the same time.

    Each config gets its own, salted code hash; without it a search would treat the configs as duplicates.

    Args:
        count: Number of configs.
    """
    side = math.isqrt(count - 1) + 1
    space = SearchSpace("null", "one kernel under many names", null_tunables(side), (), ())
    configs = itertools.islice(_all_configs(space), count)
    return _landscape(space, configs, lambda _: _NULL_US, f"{count} names of one kernel")


def null_tunables(side: int) -> tuple[Tunable, ...]:
    """Returns two tunables without effect, with ``side`` values each, at most 256."""
    names = tuple(range(side))
    return (
        Ordinal("NAME_A", names, "names", "first part of the name"),
        Ordinal("NAME_B", names, "names", "second part of the name"),
    )


def salted(code_hash: str, config: Config) -> str:
    """Returns a code hash that is unique to the config, whatever its machine code; for null controls only."""
    return hashlib.sha256(f"null control/{code_hash}/{config.key}".encode()).hexdigest()[:16]


def _landscape(
    space: SearchSpace, configs: Iterator[Config], time_us: Callable[[Config], float], sampling: str
) -> Landscape:
    evaluations = tuple(_evaluation(config, time_us(config)) for config in configs)
    provenance = LandscapeSource(__version__, "", "", "none: nothing ran", sampling)
    family = RecordedFamily(space, "", "", len(evaluations), evaluations)
    return keyed(Landscape(_PROBLEM, _DEVICE, {}, METHOD, (family,), provenance))


def _evaluation(config: Config, us: float) -> Evaluation:
    code = salted("", config)
    if not math.isfinite(us):
        return Evaluation(config, Status.LAUNCH_FAILED, "bad luck", code_hash=code, resources=_RESOURCES)
    rounded = float(f"{us:.5g}")
    timing = Timing(rounded, rounded, rounded, predicted=False, method=METHOD)
    return Evaluation(config, Status.OK, code_hash=code, resources=_RESOURCES, timing=timing)


def _all_configs(space: SearchSpace) -> Iterator[Config]:
    names = [tunable.name for tunable in space.tunables]
    for values in itertools.product(*(tunable.values for tunable in space.tunables)):
        yield Config.of(space.family, dict(zip(names, values, strict=True)))


def _obeys(config: Config) -> bool:
    warps, keys = int(config["WARPS"]), int(config["TILE_N"]) * int(config["STAGES"]) * int(config["CTAS"])
    return int(config["TILE_M"]) >= 16 * warps and keys <= 512


def _formula_us(config: Config, shift: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> float:
    luck = int.from_bytes(hashlib.sha256(f"{seed}{config}".encode()).digest()[:8], "big") / 2**64
    if luck < _FAILING:
        return math.inf
    rows, keys = math.log2(int(config["TILE_M"])), math.log2(int(config["TILE_N"]))
    warps, stages = math.log2(int(config["WARPS"])), int(config["STAGES"])
    us = 5.0
    us *= 1 + 0.06 * (rows - 5.5 - shift[0]) ** 2
    us *= 1 + 0.08 * (keys - 6.0 - shift[1] + 0.5 * (stages - 2)) ** 2
    us *= 1 + 0.10 * (warps - (rows - 4.3 - shift[2])) ** 2
    us *= 1 + 0.05 * abs(int(config["CTAS"]) * stages - 5 - 2 * shift[3])
    conflicts = {"plain": 0.30, "swizzle": 0.02, "split": 0.12}[str(config["LAYOUT"])]
    us *= 1 + conflicts * (1.0 if config["PAD"] == 0 else 0.35) + 0.004 * int(config["PAD"])
    us *= 1.0 if config["UNROLL"] == (stages < 3) else 1.07
    return float(us * (1 + _RUGGED * (2 * luck - 1)))
