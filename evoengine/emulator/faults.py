"""Errors of the emulator. Each is one line with the PTX and source lines, the block, the thread and the address."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from evoengine.errors import CandidateTimeoutError, LaunchError, short_line


class FaultKind(enum.Enum):
    """Reason why a launch was stopped."""

    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED_READ = "uninitialised_read"
    CP_ASYNC_NOT_WAITED = "cp_async_not_waited"
    """Read of shared memory that a cp.async writes, before the wait for it or before the barrier after that wait."""
    BULK_COPY_NOT_WAITED = "bulk_copy_not_waited"
    """Access to shared memory that a bulk copy writes before its mbarrier phase has completed, or an exit before it."""
    OPERAND_IN_FLIGHT = "operand_in_flight"
    """Write to shared memory, or access to a register, that a pending wgmma or bulk store still uses."""
    MISSING_PROXY_FENCE = "missing_proxy_fence"
    """Asynchronous access to shared memory without a fence.proxy.async between it and that of a thread."""
    DATA_RACE = "data_race"
    UNPUBLISHED_READ = "unpublished_read"
    """Read of what another CTA has written in the same launch and not published to the reader."""
    UNORDERED_WRITE = "unordered_write"
    """Write of another value over what another CTA has written in the same launch and not published to the writer."""
    ORDER_DEPENDENT = "order_dependent"
    """Results that depend on the order of CTAs or of lanes of an atomic, on asynchronous operations, or on strides."""
    BARRIER_DEADLOCK = "barrier_deadlock"
    WARP_DIVERGENCE = "warp_divergence"
    """A warp-wide instruction was executed without all the lanes that it names."""
    UNSUPPORTED_INSTRUCTION = "unsupported_instruction"
    MALFORMED_PTX = "malformed_ptx"
    BAD_LAUNCH = "bad_launch"
    ILLEGAL_VALUE = "illegal_value"
    TRAP = "trap"


def place_text(ptx_line: int, ptx_text: str, source_line: int | None, source_file: str) -> str:
    """Names an instruction by its PTX line and, if it is known, its source line."""
    source = "" if source_line is None else f", source {source_file or '?'}:{source_line}"
    return f"at PTX line {ptx_line} `{ptx_text}`{source}"


@dataclass(frozen=True)
class Fault:
    """Description of a fault; fields that do not apply are None."""

    kind: FaultKind
    detail: str
    ptx_line: int | None = None
    """Line number in the PTX text, from 1."""
    ptx_text: str = ""
    source_line: int | None = None
    """Line of the CUDA source, if the PTX carries line information."""
    source_file: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    address: int | None = None

    def __str__(self) -> str:
        parts = [f"emulator: {self.kind.value}: {self.detail}"]
        if self.ptx_line is not None:
            parts.append(place_text(self.ptx_line, self.ptx_text, self.source_line, self.source_file))
        if self.block is not None:
            parts.append(f"block {self.block}")
        if self.thread is not None:
            parts.append(f"thread {self.thread}")
        if self.address is not None:
            parts.append(f"address {self.address:#x}")
        return short_line(", ".join(parts))


class EmulatorError(LaunchError):
    """A fault that stopped a launch. ``fault`` holds the details; ``str()`` gives them in one line."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))

    @property
    def kind(self) -> FaultKind:
        return self.fault.kind

    def __reduce__(self) -> tuple[type[EmulatorError], tuple[Fault]]:
        return type(self), (self.fault,)


class EmulatorTimeoutError(CandidateTimeoutError):
    """The launch exceeded its deadline or its step limit."""


class SiteFault(Exception):
    """A fault of a running block, with instruction index and lane. The executor turns it into :class:`EmulatorError`.

    Args:
        kind: Kind of the fault.
        detail: Description.
        site: Index of the instruction in its entry.
        cta: Row of the CTA in its batch.
        lane: Thread in its CTA.
        address: Address of the faulting access, in bytes.
    """

    def __init__(
        self,
        kind: FaultKind,
        detail: str,
        site: int,
        cta: int | None = None,
        lane: int | None = None,
        address: int | None = None,
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.site = site
        self.cta = cta
        self.lane = lane
        self.address = address
        super().__init__(detail)
