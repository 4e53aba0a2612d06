"""xFormers' memory_efficient_attention, with its own choice of operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError, load

if TYPE_CHECKING:
    import torch


class XFormers:
    """``xformers.ops.memory_efficient_attention_forward``."""

    name: Final = "xformers"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Copies the tensors to ``[batch, seq, heads, head_dim]``, with a group axis when heads share keys."""
        library, ops = load("xformers"), load("xformers.ops")
        inputs.supports_only("window", "packed")
        inputs.require_gpu()
        problem = inputs.problem
        q, k, v = inputs.rows_outside_heads()
        shape = (problem.memory_batch, problem.rows_q, problem.heads, problem.head_dim)
        if problem.heads != problem.kv_heads:
            group = problem.heads // problem.kv_heads
            q = q.view(*shape[:2], problem.kv_heads, group, problem.head_dim)
            k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, group, -1) for tensor in (k, v))
        bias = _bias(inputs, load("xformers.ops.fmha.attn_bias"))
        attention = ops.memory_efficient_attention_forward

        def run() -> PeerOutput:
            output: torch.Tensor = attention(q, k, v, attn_bias=bias)
            return PeerOutput(output.reshape(shape).transpose(1, 2))

        return PeerCall(run, str(library.__version__))


def _bias(inputs: PeerInputs, biases: Any) -> Any:
    """Returns the library's mask object; None for no mask."""
    problem, (left, right) = inputs.problem, inputs.window
    if problem.packed:
        packed = biases.BlockDiagonalMask.from_seqlens(list(problem.lengths_q), list(problem.lengths_kv))
        if right is None and left is None:
            return packed
        if right != 0:
            raise PeerUnavailableError("does not do such windows over packed sequences")
        if left is None:
            return packed.make_causal_from_bottomright()
        return packed.make_local_attention_from_bottomright(left + 1)
    if left is None and right is None:
        return None
    if left is None and right == 0:
        return biases.LowerTriangularFromBottomRightMask()
    sides = (problem.seq_kv if left is None else left, problem.seq_kv if right is None else right)
    return biases.LocalAttentionFromBottomRightMask(*sides)


ORDER: Final = 6
PEERS: Final = (XFormers(),)
