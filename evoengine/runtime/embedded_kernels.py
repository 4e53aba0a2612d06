"""The kernels that an exported module carries: which of them serves a call, and whether they are intact."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from evoengine.runtime.call import Call
from evoengine.runtime.first_use_check import try_kernel
from evoengine.runtime.launcher import Launch, Plan

Sized = tuple[tuple[tuple[str, tuple[int, int, int], int, int], ...], int, int]
"""Launches (entry, grid, threads, bytes of shared memory), bytes of workspace, counters."""


@dataclass(frozen=True, eq=False)
class Carried:
    """One kernel."""

    name: str
    """Key of the problem that it was searched for."""
    call: Call
    """The same as a call."""
    arch: str
    """Architecture of its machine code: ``sm_90``."""
    gpu: str
    """Where it was evaluated."""
    sized: Callable[..., Sized]
    """Launches for a call's sizes, by the names of the search-space files."""
    sha256: str
    """Of the cubin."""
    packed_code: str
    """The cubin: zlib, base 85."""

    @functools.cached_property
    def code(self) -> bytes:
        """The cubin.

        Raises:
            RuntimeError: it was damaged.
        """
        try:
            code = zlib.decompress(base64.b85decode(self.packed_code))
        except (ValueError, zlib.error) as error:
            raise RuntimeError(f"the kernel of {self.name} is damaged: {error}: export it again") from error
        if hashlib.sha256(code).hexdigest() != self.sha256:
            raise RuntimeError(f"the kernel of {self.name} is not the one that was exported: export it again")
        return code

    def plan(self, call: Call) -> Plan:
        """Code and sizes for a call with this kernel's traits."""
        launches, workspace_bytes, counters = self.sized(
            batch=call.batch,
            heads=call.heads,
            kv_heads=call.kv_heads,
            seq_q=call.seq_q,
            seq_kv=call.seq_kv,
            rows_q=call.rows_q,
            rows_kv=call.rows_kv,
            memory_batch=1 if call.packed else call.batch,
            window_left=call.window_left,
            window_right=call.window_right,
        )
        return Plan(self.code, tuple(Launch(*launch) for launch in launches), workspace_bytes, counters)

    def distance(self, call: Call) -> float:
        """How far a call's sizes are from those that it was searched for: doublings of work and of what shares it."""
        return sum(
            abs(math.log2(a / b))
            for a, b in (
                (call.seq_q, self.call.seq_q),
                (call.seq_kv, self.call.seq_kv),
                (call.batch * call.heads, self.call.batch * self.call.heads),
                (call.heads // call.kv_heads, self.call.heads // self.call.kv_heads),
            )
        )


class Carrier:
    """Chooses among carried kernels: the nearest in size of those that compute what a call asks for.

    Args:
        kernels: all of them.
    """

    def __init__(self, kernels: tuple[Carried, ...]) -> None:
        self.kernels = kernels

    def find(self, call: Call, capability: tuple[int, int] | None) -> Carried | str:
        """The kernel for a call, or why there is none.

        Args:
            call: what is asked for.
            capability: of the GPU; None for the CPU.
        """
        if capability is None:
            return "the tensors are not on a GPU"
        if 0 in (call.batch, call.rows_q, call.rows_kv):
            return "there is nothing to compute"
        able = [kernel for kernel in self.kernels if kernel.call.traits == call.traits]
        if not able:
            return f"no kernel here computes {describe(call)}: there are {', '.join(k.name for k in self.kernels)}"
        fitting = [kernel for kernel in able if runs(kernel.arch, capability)]
        if not fitting:
            archs = ", ".join(sorted({kernel.arch for kernel in able}))
            return f"the kernels are for {archs}, this GPU is sm_{capability[0]}{capability[1]}"
        return min(fitting, key=lambda kernel: kernel.distance(call))

    def resolve(self, call: Call, device: int, required: bool, leaderboard: str) -> Plan | None:
        """Answers a door."""
        if leaderboard:
            raise ValueError("this module carries its kernels and takes no leaderboard")
        found = self.find(call, torch.cuda.get_device_capability(device) if device >= 0 else None)
        if isinstance(found, Carried):
            return found.plan(call)
        if required:
            raise RuntimeError(f"no kernel serves this call, and fallback is off: {found}")
        warnings.warn(f"torch's own attention serves: {found}", RuntimeWarning, stacklevel=7)
        return None

    def check(self) -> int:
        """Checks every kernel: its hash, and on a GPU what it computes. Prints a line for each.

        Returns:
            0 when all is well, else 1.
        """
        failed = 0
        gpu = torch.cuda.is_available()
        for kernel in self.kernels:
            try:
                kernel.code  # noqa: B018 - the property checks the hash
                reason = "" if not gpu else self._wrong(kernel)
            except RuntimeError as error:
                reason = str(error)
            failed += bool(reason)
            done = "runs right" if gpu else "hash is right; without a GPU it is not run"
            sys.stdout.write(f"{'FAIL' if reason else 'PASS'} {kernel.name}: {reason or done}\n")
        return int(failed > 0)

    @staticmethod
    def _wrong(kernel: Carried) -> str:
        if not runs(kernel.arch, torch.cuda.get_device_capability()):
            return f"its machine code is for {kernel.arch}, which this GPU does not run"
        return try_kernel(kernel.plan, kernel.call, torch.cuda.current_device())


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up, for the expressions of launches."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of ``b`` that is at least ``a``."""
    return ceil_div(a, b) * b


def runs(arch: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on its own major version from its minor on (``sm_90a`` only where it is exact)."""
    digits = re.sub(r"\D", "", arch)
    major, minor = int(digits[:-1]), int(digits[-1])
    exact = arch[-1].isalpha()
    return major == capability[0] and (minor == capability[1] if exact else minor <= capability[1])


def describe(call: Call) -> str:
    """What a call asks for, in words."""
    words = [call.dtype, f"head_dim {call.head_dim}"]
    features = ("causal", call.causal), ("sink", call.sink), ("log-sum-exp", call.lse), ("packed", call.packed)
    words += [name for name, on in features if on]
    words += ["window"] if call.window_left >= 0 or call.window_right >= 0 else []
    words += ["softcap"] if call.softcap else []
    return ", ".join(words)
