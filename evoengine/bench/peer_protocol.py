"""The protocol of a peer, which turns tensors into a call or raises the reason why it cannot, and its helpers.

torch and the libraries of the peers are imported inside functions only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from evoengine.errors import EvoEngineError
from evoengine.kernel.call import LSE_POISON_BITS, AttentionInputs, AttentionOutput
from evoengine.kernel.memory_layout import POISON_BITS, Bits
from evoengine.kernel.template.metadata import features_of
from evoengine.model import DType, Problem

if TYPE_CHECKING:
    import torch


_WORDS: Final[Mapping[str, str]] = {
    "window": "windows",
    "softcap": "softcap",
    "sink": "sinks",
    "lse": "the log-sum-exp",
    "packed": "packed sequences",
}
"""Feature names as they appear in a peer's refusal."""


class PeerUnavailableError(EvoEngineError):
    """A peer is not installed or does not support the problem; the message is a few words for its row."""


@dataclass(frozen=True, eq=False)
class PeerInputs:
    """Q, K and V as torch tensors, which are copied to the device when they are first used.

    A peer that does not support the problem therefore costs no CUDA context. Build it with :func:`upload`.
    """

    inputs: AttentionInputs
    device: str

    @property
    def problem(self) -> Problem:
        """Problem of the inputs."""
        return self.inputs.problem

    @cached_property
    def q(self) -> torch.Tensor:
        """``[memory_batch, heads, rows_q, head_dim]``, contiguous."""
        return self._tensor(self.inputs.q)

    @cached_property
    def k(self) -> torch.Tensor:
        """``[memory_batch, kv_heads, rows_kv, head_dim]``, contiguous."""
        return self._tensor(self.inputs.k)

    @cached_property
    def v(self) -> torch.Tensor:
        """Like ``k``."""
        return self._tensor(self.inputs.v)

    @cached_property
    def sink(self) -> torch.Tensor:
        """Sink logits, f32 ``[heads]``; only if the problem has a sink."""
        import torch

        return torch.tensor(self.inputs.sink).to(self.device)

    @cached_property
    def starts_q(self) -> torch.Tensor:
        """int32 ``[batch + 1]``: first row of each sequence when all are concatenated, packed or not."""
        return self._starts([queries for queries, _ in self.problem.sequences])

    @cached_property
    def starts_kv(self) -> torch.Tensor:
        """Like ``starts_q``, for the keys."""
        return self._starts([keys for _, keys in self.problem.sequences])

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors are on a GPU; some peers can be checked without one."""
        return self.device.startswith("cuda")

    @property
    def causal_offset(self) -> int:
        """Offset of the causal mask: query row ``i`` attends to keys ``j <= i + offset``."""
        return self.problem.seq_kv - self.problem.seq_q

    @property
    def window(self) -> tuple[int | None, int | None]:
        """Number of keys before and after a row's diagonal, None for all; a causal mask is ``(None, 0)``."""
        return self.problem.window_left, 0 if self.problem.causal else self.problem.window_right

    def rows_outside_heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns contiguous copies ``[memory_batch, rows, heads, head_dim]``, as several libraries need them."""
        q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (self.q, self.k, self.v))
        return q, k, v

    def mask(self) -> torch.Tensor:
        """Returns the bottom-right mask of an unpacked problem, bool ``[seq_q, seq_kv]``, True for attended keys."""
        import torch

        seen = torch.ones(self.problem.seq_q, self.problem.seq_kv, dtype=torch.bool, device=self.q.device)
        left, right = self.window
        if right is not None:
            seen = seen.tril(self.causal_offset + right)
        return seen if left is None else seen.triu(self.causal_offset - left)

    def supports_only(self, *features: str) -> None:
        """Checks that the problem needs no features other than these.

        Args:
            features: Features that the peer supports, out of window, softcap, sink, lse, packed.

        Raises:
            PeerUnavailableError: The problem needs another feature.
        """
        missing = [_WORDS[name] for name in features_of(self.problem) if name not in features]
        if missing:
            raise PeerUnavailableError(f"does not do {' or '.join(missing)}")

    def require_gpu(self) -> None:
        """Raises :class:`PeerUnavailableError` if the tensors are not on a GPU."""
        if not self.on_gpu:
            raise PeerUnavailableError("runs on a GPU only")

    def _tensor(self, bits: Bits) -> torch.Tensor:
        import torch

        dtype = torch.float16 if self.problem.dtype is DType.FP16 else torch.bfloat16
        return torch.tensor(np.ascontiguousarray(bits).view(np.int16)).view(dtype).to(self.device)

    def _starts(self, lengths: list[int]) -> torch.Tensor:
        import torch

        return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(self.device)


class PeerOutput(NamedTuple):
    """Result of one call of a peer."""

    o: torch.Tensor
    """Logically ``[memory_batch, heads, rows_q, head_dim]``."""
    lse: torch.Tensor | None = None
    """f32, logically ``[memory_batch, heads, rows_q]``, natural logarithm; None unless the problem requests it."""


@dataclass(frozen=True)
class PeerCall:
    """A peer that is prepared for fixed inputs."""

    run: Callable[[], PeerOutput]
    """Enqueues one attention call on the current stream. It is called several times, then captured in a CUDA graph for
    timing, so it must not synchronise. Calls may return the same buffers. Gradients are off."""
    note: str = ""
    """Remark such as a version or the configuration that its tuner chose."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Settings that must hold around calls; the caller enters it once, outside the timed calls."""
    tuned: str = ""
    """Setting that a tuner chose, for :meth:`TunedPeer.prepare_tuned`; empty if there was no tuner."""

    def __call__(self) -> PeerOutput:
        return self.run()


class Peer(Protocol):
    """Another library's attention."""

    @property
    def name(self) -> str:
        """Name in the table and for ``--peers``."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Plans, tunes or compiles for these inputs.

        Raises:
            PeerUnavailableError: The library is not installed or does not support the problem.
        """


@runtime_checkable
class TunedPeer(Peer, Protocol):
    """A peer whose tuning can be reused in another process."""

    def prepare_tuned(self, inputs: PeerInputs, tuned: str) -> PeerCall:
        """Like :meth:`prepare`, with the setting that an earlier call found as :attr:`PeerCall.tuned`."""


def upload(inputs: AttentionInputs, device: str = "cuda") -> PeerInputs:
    """Returns inputs on a torch device, contiguous with heads outside rows; each is copied when it is first used."""
    return PeerInputs(inputs, device)


def host_output(output: PeerOutput, problem: Problem) -> AttentionOutput:
    """Copies a peer's output to the host, in the form that the check takes.

    Raises:
        ValueError: Shape or dtype do not match the problem.
    """
    import torch

    shape = (problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim)
    dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    _check(output.o, "output", shape, dtype)
    o: np.ndarray = output.o.detach().contiguous().view(torch.int16).cpu().numpy()
    if not problem.lse or output.lse is None:
        return AttentionOutput(o.view(np.uint16))
    _check(output.lse, "log-sum-exp", shape[:3], torch.float32)
    return AttentionOutput(o.view(np.uint16), output.lse.detach().contiguous().cpu().numpy())


def _check(tensor: torch.Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
        raise ValueError(f"the {name} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")


def poison(output: PeerOutput) -> None:
    """Fills an output with a NaN pattern that no kernel writes."""
    import torch

    output.o.view(torch.int16).fill_(POISON_BITS)
    if output.lse is not None:
        output.lse.view(torch.int32).fill_(LSE_POISON_BITS)


def load(module: str) -> Any:
    """Imports a peer's library.

    Raises:
        PeerUnavailableError: The library is not installed or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        absent = module == missing or module.startswith(f"{missing}.")
        raise PeerUnavailableError("not installed" if absent else f"needs {missing}, which is not installed") from error
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # a library built for another torch or CUDA
        raise PeerUnavailableError(f"cannot be imported: {first_line(error)}") from error


def first_line(error: BaseException, limit: int = 160) -> str:
    """Returns the first non-empty line of an error's text, shortened; the error's type if there is none."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = next(filter(None, lines), type(error).__name__)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
