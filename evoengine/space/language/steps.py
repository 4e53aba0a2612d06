"""Budget of steps for building a space, so that a hostile search-space file ends in an error instead of a hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

MAX_STEPS: Final = 2 * 10**8
"""Budget of one space: elements of arrays that an operation computes or moves. The packaged spaces need up to 2e7."""
SCALAR_STEPS: Final = 200
"""Steps of one evaluation that Python makes instead of NumPy, besides those of the expression's length."""
CODE_BYTES_PER_STEP: Final = 8
"""Bytes of Python's code that such an evaluation runs in one step; 500 operations have some 13 KiB."""

_LEFT: Final[ContextVar[list[int] | None]] = ContextVar("steps_left", default=None)


class StepLimitError(Exception):
    """The budget is spent."""


@contextmanager
def step_budget(steps: int) -> Iterator[None]:
    """Limits the steps of the block."""
    token = _LEFT.set([steps])
    try:
        yield
    finally:
        _LEFT.reset(token)


def spend(steps: int) -> None:
    """Takes steps from the budget of the enclosing block; without a block there is no limit.

    Raises:
        StepLimitError: The budget does not suffice.
    """
    left = _LEFT.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise StepLimitError
