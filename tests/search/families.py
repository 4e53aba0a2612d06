"""Three synthetic families with the same tunables; each has its own landscape and a factor on its times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from evoengine.model import Config, Problem, Value
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import load_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.search.landscape import SPACE_TOML, true_us

FACTORS: Final[Mapping[str, float]] = {"alpha": 1.0, "beta": 2.0, "gamma": 9.0}
"""Similar to the ratios between the tensor-core family and the two baselines."""
_SHIFTS: Final = {"alpha": 0, "beta": 100, "gamma": 200}


def build_family(folder: Path, family: str, overrides: Mapping[str, Sequence[Value]] | None = None) -> ValidSpace:
    """The space of one synthetic family."""
    file = folder / f"{family}.toml"
    file.write_text(SPACE_TOML.replace('"synthetic"', f'"{family}"'))
    return load_space(file).build(Problem(1, 8, 512, 64), get_target("l4"), overrides=overrides)


def build_families(folder: Path, overrides: Mapping[str, Sequence[Value]] | None = None) -> FamilySpaces:
    """The spaces of all families."""
    return FamilySpaces(tuple(build_family(folder, family, overrides) for family in FACTORS))


def family_us(config: Config, seed: int = 0) -> float:
    """Time of a config of any family."""
    same_tunables = Config.of("synthetic", config.as_dict())
    return FACTORS[config.family] * true_us(same_tunables, seed + _SHIFTS[config.family])
