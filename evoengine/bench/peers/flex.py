"""FlexAttention: compiled and tuned by torch.compile on a GPU, its eager definition elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput

if TYPE_CHECKING:
    import torch

Mask = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""``mask_mod``: whether a row attends to a key."""

_MODE: Final = "max-autotune-no-cudagraphs"


class Flex:
    """``torch.nn.attention.flex_attention``."""

    name: Final = "flex"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Builds the block mask; the first call compiles."""
        inputs.supports_only("window", "softcap", "lse", "packed")
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        problem = inputs.problem
        attention: Any = flex_attention
        if inputs.on_gpu:
            attention = torch.compile(flex_attention, dynamic=False, mode=_MODE)
        arguments: dict[str, Any] = {"enable_gqa": problem.heads != problem.kv_heads, "return_lse": problem.lse}
        sees = _packed_mask(inputs) if problem.packed else _plain_mask(inputs) if problem.masked else None
        if sees is not None:
            shape = (problem.rows_q, problem.rows_kv)
            arguments["block_mask"] = create_block_mask(sees, None, None, *shape, device=str(inputs.q.device))
        if problem.softcap:
            arguments["score_mod"] = _capped(problem.softcap)

        def run() -> PeerOutput:
            result: Any = attention(inputs.q, inputs.k, inputs.v, **arguments)
            return PeerOutput(*result) if problem.lse else PeerOutput(result)

        return PeerCall(run, f"torch.compile {_MODE}" if inputs.on_gpu else "eager", _quiet)


def _plain_mask(inputs: PeerInputs) -> Mask:
    offset, (left, right) = inputs.causal_offset, inputs.window

    def sees(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = key >= 0
        if right is not None:
            seen = seen & (key <= row + (offset + right))
        if left is not None:
            seen = seen & (key >= row + (offset - left))
        return seen

    return sees


def _packed_mask(inputs: PeerInputs) -> Mask:
    """Builds the mask from tables: the sequence of each row and key, and each row's diagonal among all keys."""
    import torch

    problem, device = inputs.problem, inputs.q.device
    left, right = inputs.window

    def numbers(lengths: tuple[int, ...]) -> torch.Tensor:
        return torch.repeat_interleave(torch.arange(problem.batch), torch.tensor(lengths)).to(device)

    of_row, of_key = numbers(problem.lengths_q), numbers(problem.lengths_kv)
    ends_q, ends_kv = inputs.starts_q[1:][of_row], inputs.starts_kv[1:][of_row]
    diagonal = torch.arange(problem.rows_q, device=device) + ends_kv - ends_q

    def sees(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = of_row[row] == of_key[key]
        if right is not None:
            seen = seen & (key <= diagonal[row] + right)
        if left is not None:
            seen = seen & (key >= diagonal[row] - left)
        return seen

    return sees


def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    import torch

    def cap(score: torch.Tensor, _b: object, _h: object, _row: object, _key: object) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the eager definition warns that it is slow, the compiler about its internals
        yield


ORDER: Final = 4
PEERS: Final = (Flex(),)
