"""The plain kernel, good or with the faults that the device contract names."""

from __future__ import annotations

import functools

from evoengine.device.contract import Broken
from evoengine.kernel.artifact import Kernel
from evoengine.model import Problem
from tests.device.scalar_kernel import ARCH, FAULTS, MUTANTS, build

CHANGES: dict[Broken | None, tuple[str, str] | None] = {
    None: None,
    "unwritten-row": MUTANTS["last-row-unwritten"],
    "writes-past-the-end": FAULTS["writes-past-the-end"],
    "reads-far-outside": FAULTS["reads-far-outside"],
    "writes-an-input": FAULTS["writes-an-input"],
}


@functools.cache
def make(problem: Problem, broken: Broken | None, arch: str = ARCH) -> Kernel:
    return build(problem, CHANGES[broken], arch)
