"""A synthetic tuning problem: a constrained space of a few thousand configs and a rugged, structured time for each."""

from __future__ import annotations

import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.forecast_error import own_covariance
from evoengine.model import Config, Problem, Value
from evoengine.space.index_rows import IndexRows
from evoengine.space.loader import load_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target

SPACE_TOML = """
family = "synthetic"
doc = "a landscape for tests"
[tunables.TILE_M]
kind = "ordinal"
values = [16, 32, 64, 128]
unit = "rows"
doc = "query tile"
[tunables.TILE_N]
kind = "ordinal"
values = [16, 32, 48, 64, 96, 128]
unit = "keys"
doc = "key tile"
[tunables.WARPS]
kind = "ordinal"
values = [1, 2, 4, 8]
unit = "warps"
doc = "warps"
[tunables.STAGES]
kind = "ordinal"
values = [1, 2, 3, 4]
unit = "stages"
doc = "pipeline depth"
[tunables.PAD]
kind = "ordinal"
values = [0, 8, 16]
unit = "halves"
doc = "padding"
[tunables.LAYOUT]
kind = "categorical"
values = ["plain", "swizzle", "split"]
unit = "choice"
doc = "layout"
[tunables.UNROLL]
kind = "boolean"
unit = "choice"
doc = "unroll"
[tunables.CTAS]
kind = "ordinal"
values = [1, 2, 3]
unit = "CTAs"
doc = "per SM"
[constraints.rows_per_warp]
rule = "TILE_M >= 16 * WARPS"
reason = "a warp holds sixteen rows"
[constraints.memory]
rule = "TILE_N * STAGES * CTAS <= 512"
reason = "shared memory"
"""


def build_space(folder: Path, overrides: Mapping[str, Sequence[Value]] | None = None) -> ValidSpace:
    """The valid space of :data:`SPACE_TOML`."""
    file = folder / "synthetic.toml"
    file.write_text(SPACE_TOML)
    return load_space(file).build(Problem(1, 8, 512, 64), get_target("l4"), overrides=overrides)


def noise(config: Config, salt: str, scale: float) -> float:
    """A fixed pseudo-random number per config, between -scale and scale."""
    digest = hashlib.sha256(f"{salt}{config}".encode()).digest()
    return scale * (int.from_bytes(digest[:8], "big") / 2**63 - 1)


@functools.cache
def _shift(seed: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).uniform(-0.5, 0.5, size=4).tolist())


@functools.cache
def true_us(config: Config, seed: int = 0) -> float:
    """Time of a config: bowls in log tile sizes that interact with warps and stages, plus 3 % ruggedness."""
    shift = _shift(seed)
    m, n = math.log2(int(config["TILE_M"])), math.log2(int(config["TILE_N"]))
    warps, stages = math.log2(int(config["WARPS"])), int(config["STAGES"])
    us = 5.0
    us *= 1 + 0.06 * (m - 5.5 - shift[0]) ** 2
    us *= 1 + 0.08 * (n - 6.0 - shift[1] + 0.5 * (stages - 2)) ** 2
    us *= 1 + 0.10 * (warps - (m - 4.3 - shift[2])) ** 2
    us *= 1 + 0.05 * abs(int(config["CTAS"]) * stages - 5 - 2 * shift[3])
    bank_conflicts = {"plain": 0.30, "swizzle": 0.02, "split": 0.12}[str(config["LAYOUT"])]
    us *= 1 + bank_conflicts * (1.0 if int(config["PAD"]) == 0 else 0.35) + 0.004 * int(config["PAD"])
    us *= 1.0 if config["UNROLL"] == (stages < 3) else 1.07
    return float(us) * (1 + noise(config, f"rugged{seed}", 0.03))


class ForecastByConfig(ABC):
    """A forecast that is computed config by config."""

    is_quick = True
    at_once = 128
    partition: tuple[str, ...] = ()

    @abstractmethod
    def us(self, config: Config) -> float: ...

    def us_of(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        return np.array([self.us(config) for config in configs])

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        return self.us_of([space.config_of(row) for row in rows])

    def error_covariance(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        return own_covariance(configs)


class NoisyForecast(ForecastByConfig):
    """A forecast that equals the true time up to a constant factor and a random factor per config."""

    def __init__(self, factor: float = 0.7, scale: float = 0.08) -> None:
        self._factor = factor
        self._scale = scale

    def us(self, config: Config) -> float:
        return true_us(config) * self._factor * (1 + noise(config, "guess", self._scale))

    def kind(self, config: Config) -> Hashable:
        return config["TILE_M"]
