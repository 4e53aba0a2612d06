"""Mutants: kernels with one known mistake each, which the parity gate must reject.

Every module or sub-package here that defines ``MUTANTS`` is collected, with its ``SETUPS``, the correct kernels that
mutants are made from. A family may have several such modules, or none.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantSetup

__all__ = ["MUTANTS", "SETUPS"]


def _family_modules() -> tuple[ModuleType, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return tuple(module for module in found if hasattr(module, "MUTANTS"))


PUBLIC_MODULES = ("mutant",)
"""Modules and packages that other packages import."""

_MODULES: Final = _family_modules()

SETUPS: Final[Mapping[str, MutantSetup]] = {name: setup for module in _MODULES for name, setup in module.SETUPS.items()}
"""Setups of all families, by name; names differ between families."""

MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for module in _MODULES for mutant in module.MUTANTS)
"""Mutants of all families; their names differ."""
