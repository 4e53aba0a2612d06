"""Refusal of problems whose inputs and reference results do not fit in the memory of this machine or of its GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from evoengine.costmodel.representative import SLOW_FLOPS, representative
from evoengine.engine.devices.choice import DeviceChoice
from evoengine.engine.devices.gpus import find_gpu
from evoengine.errors import MachineMemoryError, ProblemError
from evoengine.model import Problem
from evoengine.parity.inputs.cases import limited
from evoengine.parity.inputs.pool import input_elements, recheck_count
from evoengine.search.candidate.setup import WHOLE_PROBLEM_FLOPS
from evoengine.system.memory import address_space_bytes, physical_bytes
from evoengine.target import Target

_GIB: Final = 2**30
_BASE_BYTES: Final = 384 * 2**20
"""Unshared resident memory of all processes of a search on a tiny problem."""
_TORCH_SPACE_BYTES: Final = 900 * 2**20
"""Address space that importing torch and starting its threads take."""
_POOL_COPIES: Final = 4
"""Copies of all inputs that exist at the same time: here and in the device workers' parent, drawn and pickled."""
_WARM_COPIES: Final = 2
"""Further copies in each worker on a GPU that was forked before the inputs were known: pickled and drawn."""
_CALL_COPIES: Final = 2
"""Copies of a call's tensors in each emulating worker, and on a GPU: the kernel's and the baseline's."""
_CONTEXT_BYTES: Final = 2**29
"""GPU memory of a CUDA context and of what its libraries load."""


def check_memory(problems: Iterable[Problem], choice: DeviceChoice, target: Target) -> None:
    """Checks that a search on these problems has the memory that it needs in any case.

    Args:
        problems: Problems of the search.
        choice: Devices of the search.
        target: GPU for which the search is: the first of the devices, or the one that the emulator predicts.

    Raises:
        ProblemError: A problem is too large for this machine, its GPU or the target.
        MachineMemoryError: Even a tiny problem would not fit.
    """
    problems, emulated = tuple(problems), choice.spec.kind == "emulator"
    largest = max(problems, key=lambda problem: problem.min_bytes)
    if largest.min_bytes > target.dram_bytes:
        numbers = (
            f"{largest.min_bytes / _GIB:,.1f} GiB of memory, {target.marketing_name} has {target.dram_bytes / _GIB:.1f}"
        )
        raise ProblemError(f"{largest.key[:80]}: its tensors take {numbers}: choose a smaller problem")
    run = [limited(problem, WHOLE_PROBLEM_FLOPS) if emulated else problem for problem in problems]
    pool_bytes = sum(
        _pool_bytes(one, problem if emulated else None) for one, problem in zip(run, problems, strict=True)
    )
    workers = len(choice.bindings) if emulated else 0
    warm = 0 if emulated else len(choice.bindings)
    copies = _POOL_COPIES + _WARM_COPIES * warm
    needed = copies * pool_bytes + _CALL_COPIES * workers * max(one.min_bytes for one in run)
    names = ", ".join(problem.key for problem in problems)
    _compare(names, needed, _BASE_BYTES, physical_bytes(), "memory")
    base_bytes = 0 if "torch" in sys.modules else _TORCH_SPACE_BYTES
    _compare(names, _POOL_COPIES * pool_bytes, base_bytes, address_space_bytes(), "address space ('ulimit -v')")
    gpu = (choice.gpu or find_gpu()) if choice.spec.kind == "cuda" else None
    if gpu is not None:
        _compare(names, _CALL_COPIES * largest.min_bytes, _CONTEXT_BYTES, gpu.memory_bytes, f"memory on {gpu.name}")


def _pool_bytes(run: Problem, whole: Problem | None) -> int:
    """Returns the size of all inputs that are as large as the problem.

    Args:
        run: Problem, or the slice of it that is run.
        whole: Problem whose slice for slow kernels is drawn too; None where all kernels run the whole problem.
    """
    total = (1 + recheck_count(input_elements(run))) * _input_bytes(run)
    part = None if whole is None else representative(whole, SLOW_FLOPS)
    if part is not None and part.flops < run.flops:
        total += 4 * _input_bytes(part)
    return total


def _input_bytes(problem: Problem) -> int:
    return input_elements(problem) * problem.dtype.bytes


def _compare(names: str, needed: int, base: int, available: int | None, what: str) -> None:
    if available is None or needed + base <= available:
        return
    numbers = f"needs about {(needed + base) / _GIB:.2f} GiB of {what}, {available / _GIB:.2f} GiB are available"
    if base > available:
        raise MachineMemoryError(f"this machine: a search {numbers}: end other programs or raise the limit")
    raise ProblemError(f"{names[:80]}: {numbers}: choose a smaller problem, or free memory")
