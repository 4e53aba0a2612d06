"""Mutants of the mma family."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.mma.cta_order import CTA_ORDER
from evoengine.parity.mutants.mma.hazards import HAZARDS
from evoengine.parity.mutants.mma.numbers import NUMBERS
from evoengine.parity.mutants.mma.setups import BASE, SETUPS
from evoengine.parity.mutants.mutant import Mutant

__all__ = ["BASE", "CTA_ORDER", "HAZARDS", "MUTANTS", "NUMBERS", "SETUPS"]

MUTANTS: Final[tuple[Mutant, ...]] = (*NUMBERS, *HAZARDS, *CTA_ORDER)
