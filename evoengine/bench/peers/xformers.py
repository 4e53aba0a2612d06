"""xFormers' memory_efficient_attention, with the operator that it chooses itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peers.base import PeerCall, PeerInputs, load

if TYPE_CHECKING:
    import torch


class XFormers:
    """``xformers.ops.memory_efficient_attention_forward``."""

    name: Final = "xformers"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Lays the tensors out as ``[batch, seq, heads, head_dim]``, or with a group axis when heads share keys."""
        library, ops = load("xformers"), load("xformers.ops")
        inputs.require_gpu()
        problem = inputs.problem
        q, k, v = inputs.rows_outside_heads()
        if problem.heads != problem.kv_heads:
            group = problem.heads // problem.kv_heads
            q = q.view(problem.batch, problem.seq_q, problem.kv_heads, group, problem.head_dim)
            k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, group, -1) for tensor in (k, v))
        bias: Any = None
        if problem.causal:
            bias = load("xformers.ops.fmha.attn_bias").LowerTriangularFromBottomRightMask()
        attention = ops.memory_efficient_attention_forward
        shape = (problem.batch, problem.seq_q, problem.heads, problem.head_dim)

        def run() -> torch.Tensor:
            output: torch.Tensor = attention(q, k, v, attn_bias=bias)
            return output.reshape(shape).transpose(1, 2)

        return PeerCall(run, str(library.__version__))


PEERS: Final = (XFormers(),)
