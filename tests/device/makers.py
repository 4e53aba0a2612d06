"""The plain kernel, good or with the faults that the device contract names."""

from __future__ import annotations

import functools

from evoengine.device.contract import Broken, Merge
from evoengine.kernel.records import Kernel
from evoengine.model import Problem
from tests.device.scalar_kernel import ARCH, FAULTS, FEATURE_FAULTS, MUTANTS, build

CHANGES = {"unwritten-row": MUTANTS["last-row-unwritten"], **FAULTS, **FEATURE_FAULTS}


@functools.cache
def make(problem: Problem, broken: Broken | None, merge: Merge = "none", arch: str = ARCH) -> Kernel:
    return build(problem, CHANGES[broken] if broken else None, arch, merge)
