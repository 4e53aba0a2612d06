"""Kernels that are known to be wrong, one mistake each, and what is needed to make them: the gate is tested by them."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.hazards import HAZARDS
from evoengine.parity.mutants.mutant import Edit, Mutant, Setup, mutate
from evoengine.parity.mutants.numbers import NUMBERS
from evoengine.parity.mutants.setups import BASE, FAMILY, SETUPS

__all__ = ["BASE", "FAMILY", "HAZARDS", "MUTANTS", "NUMBERS", "SETUPS", "Edit", "Mutant", "Setup", "mutate"]

MUTANTS: Final[tuple[Mutant, ...]] = (*NUMBERS, *HAZARDS)
"""All of them; their names differ."""
