"""Waits that suspend lanes: for an mbarrier phase, for registers, or for an asynchronous operation.

The result of a block that ends with such a wait is ``("suspend", wait, guard, follower, site)``, where ``wait`` is one
of these records and ``guard`` the lanes that execute the instruction, None for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.emulator.arrays import Array


@dataclass(frozen=True)
class PhaseWait:
    """``mbarrier.try_wait``: until a phase is complete."""

    address: Array
    token: Array
    parity: bool


@dataclass(frozen=True)
class RegisterWait:
    """``setmaxnreg.inc``: until the pool of the CTA has the registers."""

    count: int


@dataclass(frozen=True)
class GroupWait:
    """``wait_group`` of ``wgmma`` or of bulk copies: in late execution, until no thread can run before it."""

    newest: int
    wgmma: bool
    read_only: bool


Wait = PhaseWait | RegisterWait | GroupWait
