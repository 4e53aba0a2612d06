"""Kernels embedded in an exported module: selection for a call, and verification."""

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
from dataclasses import dataclass, replace

import torch

from evoengine.runtime.call import Call, CallStrides
from evoengine.runtime.first_use_check import check_kernel
from evoengine.runtime.kernel_choice import choose_kernel
from evoengine.runtime.launcher import KernelPlan, Launch
from evoengine.runtime.map_arguments import MapBox

LaunchSizes = tuple[tuple[tuple[str, tuple[int, int, int], int, int], ...], int, int]
"""Launches (entry, grid, threads, shared memory in bytes), workspace in bytes, number of counters."""
_MOST_CODE_BYTES = 1 << 26
"""Maximum size of a cubin; a longer one is cut, which its hash reveals."""


@dataclass(frozen=True, eq=False)
class EmbeddedKernel:
    """One embedded kernel."""

    name: str
    """Key of the problem for which it was searched."""
    call: Call
    """The same problem as a call."""
    arch: str
    """Architecture of the machine code: ``sm_90``."""
    gpu: str
    """Name of the GPU on which it was evaluated."""
    launch_sizes: Callable[..., LaunchSizes]
    """Computes the launches for sizes, which are named as in search-space files."""
    has_exact_rows: Callable[..., bool]
    """Returns for sizes, named as above, whether the kernel finds the query of each of its rows."""
    sha256: str
    """SHA-256 of the cubin."""
    packed_code: str
    """Cubin, compressed with zlib and encoded in base 85."""
    maps: tuple[MapBox, ...] = ()
    """Tensor maps of the kernel's second argument."""

    @functools.cached_property
    def code(self) -> bytes:
        """Decodes the cubin.

        Raises:
            RuntimeError: The embedded text is damaged.
        """
        try:
            code = zlib.decompressobj().decompress(base64.b85decode(self.packed_code), _MOST_CODE_BYTES)
        except (ValueError, zlib.error) as error:
            raise RuntimeError(f"the kernel of {self.name} is damaged: {error}: export it again") from error
        if hashlib.sha256(code).hexdigest() != self.sha256:
            raise RuntimeError(f"the kernel of {self.name} differs from the exported one: export it again")
        return code

    def plan(self, call: Call) -> KernelPlan:
        """Returns code and launch sizes for a call with this kernel's traits."""
        launches, workspace_bytes, counters = self.launch_sizes(**_sizes(call))
        steps = tuple(Launch(*launch) for launch in launches)
        return KernelPlan(self.code, steps, workspace_bytes, counters, self.maps)

    def can_compute(self, call: Call) -> bool:
        """Returns whether the sizes of a call with this kernel's traits are within its limits."""
        return self.has_exact_rows(**_sizes(call))

    def distance(self, call: Call) -> float:
        """Returns the distance of a call's sizes from those of the searched problem, in doublings."""
        return sum(
            abs(math.log2(a / b))
            for a, b in (
                (call.seq_q, self.call.seq_q),
                (call.seq_kv, self.call.seq_kv),
                (call.batch * call.heads, self.call.batch * self.call.heads),
                (call.heads // call.kv_heads, self.call.heads // self.call.kv_heads),
            )
        )


class EmbeddedKernels:
    """Selects, among the embedded kernels with the traits of a call, the one with the nearest sizes.

    Args:
        kernels: All embedded kernels.
    """

    def __init__(self, kernels: tuple[EmbeddedKernel, ...]) -> None:
        self.kernels = kernels

    def find(self, call: Call, capability: tuple[int, int] | None) -> EmbeddedKernel | str:
        """Returns the kernel for a call, or why there is none; among several for one problem the first.

        Args:
            call: Attention call.
            capability: Compute capability of the GPU; None for the CPU.
        """
        found = self.candidates(call, capability)
        return found if isinstance(found, str) else found[0]

    def candidates(self, call: Call, capability: tuple[int, int] | None) -> tuple[EmbeddedKernel, ...] | str:
        """Returns the kernels for the problem with the nearest sizes, or why there is none; arguments as above."""
        if capability is None:
            return "the tensors are not on a GPU"
        if 0 in (call.batch, call.heads, call.seq_q, call.seq_kv, call.rows_q, call.rows_kv):
            return "there is nothing to compute"
        able = [kernel for kernel in self.kernels if kernel.call.traits == call.traits]
        if not able:
            return f"no embedded kernel computes {_describe(call)}: there are {', '.join(k.name for k in self.kernels)}"
        fitting = [kernel for kernel in able if can_run(kernel.arch, capability)]
        if not fitting:
            archs = ", ".join(sorted({kernel.arch for kernel in able}))
            return f"the kernels are for {archs}, this GPU is sm_{capability[0]}{capability[1]}"
        fitting = [kernel for kernel in fitting if kernel.can_compute(call)]
        if not fitting:
            return f"{call.seq_q} queries of {call.heads} heads are more rows than the embedded kernels can number"
        nearest = min(fitting, key=lambda kernel: kernel.distance(call))
        return tuple(kernel for kernel in fitting if kernel.call == nearest.call)

    def resolve(
        self, call: Call, device: int, required: bool, leaderboard: str, strides: CallStrides
    ) -> KernelPlan | None:
        """Implements :data:`Resolver`: a kernel is tried on random tensors of each kind of strides before its use."""
        if leaderboard:
            raise ValueError("this module has embedded kernels and does not accept a leaderboard")
        able = self.candidates(call, torch.cuda.get_device_capability(device) if device >= 0 else None)
        found = able if isinstance(able, str) else _chosen(able, call, device, strides)
        if not isinstance(found, str):
            return found.plan(call)
        if required:
            raise RuntimeError(f"no kernel for this call, and fallback is off: {found}")
        warnings.warn(f"torch computes this call: {found}", RuntimeWarning, stacklevel=8)
        return None

    def check(self) -> int:
        """Checks the hash of every kernel, and its results on a GPU; prints one line per problem and failure.

        Returns:
            Exit status: 0 if all checks pass, else 1.
        """
        gpu, passed = torch.cuda.is_available(), True
        for call in dict.fromkeys(kernel.call for kernel in self.kernels):
            kernels = tuple(kernel for kernel in self.kernels if kernel.call == call)
            count, name = len(kernels), kernels[0].name
            wrong = {number: text for number, one in enumerate(kernels, 1) if (text := self._failure(one, gpu=gpu))}
            for number, text in wrong.items():
                sys.stdout.write(f"FAIL {name}{f', kernel {number} of {count}' * (count > 1)}: {text}\n")
            if not wrong:
                hashes = "hashes are correct" if count > 1 else "hash is correct"
                done = "results are correct" if gpu else f"{hashes}; not run: torch finds no NVIDIA GPU or driver"
                sys.stdout.write(f"PASS {name}{f', {count} kernels' * (count > 1)}: {done}\n")
                if gpu and count > 1:
                    sys.stdout.write(f"FASTEST {name}: {_fastest(kernels, call)}\n")
            passed &= not wrong
        return int(not passed)

    @staticmethod
    def _failure(kernel: EmbeddedKernel, *, gpu: bool) -> str:
        try:
            kernel.code  # noqa: B018 - the property checks the hash
        except RuntimeError as error:
            return str(error)
        if not gpu:
            return ""
        if not can_run(kernel.arch, torch.cuda.get_device_capability()):
            return f"its machine code is for {kernel.arch}, which this GPU cannot run"
        device, calls = torch.cuda.current_device(), (kernel.call, replace(kernel.call, scale=-0.3))
        try:
            return next(filter(None, (check_kernel(kernel.plan, call, device) for call in calls)), "")
        except RuntimeError as error:
            return str(error)


def _sizes(call: Call) -> dict[str, int]:
    """Returns the sizes of a call by their names in search-space files."""
    return {
        "batch": call.batch,
        "heads": call.heads,
        "kv_heads": call.kv_heads,
        "seq_q": call.seq_q,
        "seq_kv": call.seq_kv,
        "rows_q": call.rows_q,
        "rows_kv": call.rows_kv,
        "memory_batch": 1 if call.packed else call.batch,
        "window_left": call.window_left,
        "window_right": call.window_right,
    }


def _fastest(kernels: tuple[EmbeddedKernel, ...], call: Call) -> str:
    """Measures kernels for a problem and names the fastest by its place in the documentation of the module."""
    found = _chosen(kernels, call, torch.cuda.current_device(), None)
    return found if isinstance(found, str) else f"kernel {kernels.index(found) + 1} of {len(kernels)}"


def _chosen(
    able: tuple[EmbeddedKernel, ...], call: Call, device: int, strides: CallStrides | None
) -> EmbeddedKernel | str:
    """Returns the kernel to use for a call, checked and of several the fastest, or why there is none."""
    if len(able) > 1:
        return choose_kernel(able, call, device, strides, torch.cuda.get_device_name(device))
    (kernel,) = able
    wrong = check_kernel(kernel.plan, call, device, strides=strides)
    return f"the kernel of {kernel.name} is wrong for it: {wrong}" if wrong else kernel


def ceil_div(a: int, b: int) -> int:
    """Returns the quotient, rounded up; used by launch expressions."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Returns the smallest multiple of ``b`` that is at least ``a``; used by launch expressions."""
    return ceil_div(a, b) * b


def can_run(arch: str, capability: tuple[int, int]) -> bool:
    """Returns whether a GPU runs machine code: equal major version, minor not lower (``sm_90a``: equal)."""
    digits = re.sub(r"\D", "", arch)
    major, minor = int(digits[:-1]), int(digits[-1])
    exact = arch[-1].isalpha()
    return major == capability[0] and (minor == capability[1] if exact else minor <= capability[1])


def _describe(call: Call) -> str:
    """Describes the traits of a call in words."""
    words = [call.dtype, f"head_dim {call.head_dim}"]
    features = ("causal", call.causal), ("sink", call.sink), ("log-sum-exp", call.lse), ("packed", call.packed)
    words += [name for name, on in features if on]
    words += ["window"] if call.window_left >= 0 or call.window_right >= 0 else []
    words += ["softcap"] if call.softcap else []
    return ", ".join(words)
