"""What a peer is: it takes tensors and hands back a call, or says why it cannot.

torch and the libraries of the peers are imported inside functions only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evoengine.errors import EvoEngineError
from evoengine.kernel.call import POISON_BITS, AttentionInputs, Bits
from evoengine.model import DType, Problem

if TYPE_CHECKING:
    import torch


class PeerUnavailableError(EvoEngineError):
    """A peer is not installed, or does not take the problem; the message is a few words for its row."""


@dataclass(frozen=True, eq=False)
class PeerInputs:
    """Q, K and V as torch tensors. Build it with :func:`upload`."""

    problem: Problem
    q: torch.Tensor
    """``[batch, heads, seq_q, head_dim]``, contiguous."""
    k: torch.Tensor
    """``[batch, kv_heads, seq_kv, head_dim]``, contiguous."""
    v: torch.Tensor
    """Like ``k``."""

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors are on a GPU; without one some peers can still be checked."""
        return self.q.device.type == "cuda"

    @property
    def causal_offset(self) -> int:
        """Query row ``i`` sees keys ``j <= i + offset``."""
        return self.problem.seq_kv - self.problem.seq_q

    def rows_outside_heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Contiguous copies ``[batch, seq, heads, head_dim]``: the native layout of several libraries."""
        q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in (self.q, self.k, self.v))
        return q, k, v

    def causal_mask(self) -> torch.Tensor:
        """The bottom-right mask as booleans ``[seq_q, seq_kv]``, True where a row sees a key."""
        import torch

        ones = torch.ones(self.problem.seq_q, self.problem.seq_kv, dtype=torch.bool, device=self.q.device)
        return ones.tril(self.causal_offset)

    def require_gpu(self) -> None:
        """Raises :class:`PeerUnavailableError` where the tensors are not on a GPU."""
        if not self.on_gpu:
            raise PeerUnavailableError("runs on a GPU only")


@dataclass(frozen=True)
class PeerCall:
    """A peer that is ready to be called on fixed inputs."""

    run: Callable[[], torch.Tensor]
    """Enqueues one attention; returns the output, logically ``[batch, heads, seq_q, head_dim]``."""
    note: str = ""
    """Something to know about it: a version, the configuration that its tuner chose."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Settings that must hold around calls; entered once, not per call, so that no timing includes it."""

    def __call__(self) -> torch.Tensor:
        """One call, inside the scope that the caller holds."""
        return self.run()


class Peer(Protocol):
    """Somebody else's attention."""

    @property
    def name(self) -> str:
        """Its name in the table and for ``--peers``."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Plans, tunes or compiles for these inputs.

        Raises:
            PeerUnavailableError: not installed, or it does not take the problem.
        """


def upload(inputs: AttentionInputs, device: str = "cuda") -> PeerInputs:
    """The tensors of an input on a torch device, contiguous with heads outside rows."""
    import torch

    dtype = torch.float16 if inputs.problem.dtype is DType.FP16 else torch.bfloat16

    def tensor(bits: Bits) -> torch.Tensor:
        return torch.tensor(np.ascontiguousarray(bits).view(np.int16)).view(dtype).to(device)

    return PeerInputs(inputs.problem, tensor(inputs.q), tensor(inputs.k), tensor(inputs.v))


def output_bits(output: torch.Tensor, problem: Problem) -> Bits:
    """The bit patterns of a peer's output.

    Raises:
        ValueError: it has another shape or another dtype than the problem.
    """
    import torch

    shape = (problem.batch, problem.heads, problem.seq_q, problem.head_dim)
    dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    if tuple(output.shape) != shape or output.dtype is not dtype:
        raise ValueError(f"the output is {output.dtype} {tuple(output.shape)}, not {dtype} {shape}")
    host: np.ndarray = output.detach().contiguous().view(torch.int16).cpu().numpy()
    return host.view(np.uint16)


def poison(output: torch.Tensor) -> None:
    """Fills an output with the NaN that no kernel writes."""
    import torch

    output.view(torch.int16).fill_(POISON_BITS)


def load(module: str) -> Any:
    """Imports a peer's library.

    Raises:
        PeerUnavailableError: it is not installed, or cannot be imported.
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
    """The first line of an error's text that says something, shortened; its type where there is none."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = next(filter(None, lines), type(error).__name__)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
