"""FlexAttention: compiled and tuned by torch.compile on a GPU, its eager definition elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peers.base import PeerCall, PeerInputs

if TYPE_CHECKING:
    import torch

_MODE: Final = "max-autotune-no-cudagraphs"


class Flex:
    """``torch.nn.attention.flex_attention``."""

    name: Final = "flex"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Makes the block mask; the first call compiles."""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        problem, offset = inputs.problem, inputs.causal_offset
        attention: Any = flex_attention
        if inputs.on_gpu:
            attention = torch.compile(flex_attention, dynamic=False, mode=_MODE)

        def sees(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return key <= row + offset

        block_mask = None
        if problem.causal:
            block_mask = create_block_mask(sees, None, None, problem.seq_q, problem.seq_kv, device=inputs.q.device)
        grouped = problem.heads != problem.kv_heads

        def run() -> torch.Tensor:
            output: torch.Tensor = attention(inputs.q, inputs.k, inputs.v, block_mask=block_mask, enable_gqa=grouped)
            return output

        return PeerCall(run, f"torch.compile {_MODE}" if inputs.on_gpu else "eager", _quiet)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the eager definition warns that it is slow, the compiler of its own parts
        yield


PEERS: Final = (Flex(),)
