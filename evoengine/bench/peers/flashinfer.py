"""FlashInfer's batched prefill over ragged keys, planned beforehand as its users do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peers.base import PeerCall, PeerInputs, load

if TYPE_CHECKING:
    import torch

_WORKSPACE_BYTES: Final = 128 * 2**20
"""What its documentation recommends."""


class FlashInfer:
    """``flashinfer.BatchPrefillWithRaggedKVCacheWrapper``; its causal mask is aligned bottom-right."""

    name: Final = "flashinfer"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Plans on the host; the first call may compile."""
        library = load("flashinfer")
        inputs.require_gpu()
        import torch

        problem, device = inputs.problem, inputs.q.device
        # Ragged tensors are [batch * seq, heads, head_dim]: sequence after sequence.
        q, k, v = (tensor.flatten(0, 1) for tensor in inputs.rows_outside_heads())
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        wrapper: Any = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        starts = torch.arange(problem.batch + 1, dtype=torch.int32, device=device)
        wrapper.plan(
            starts * problem.seq_q,
            starts * problem.seq_kv,
            problem.heads,
            problem.kv_heads,
            problem.head_dim,
            causal=problem.causal,
            q_data_type=q.dtype,
        )
        shape = (problem.batch, problem.seq_q, problem.heads, problem.head_dim)

        def run() -> torch.Tensor:
            output: torch.Tensor = wrapper.run(q, k, v)
            return output.view(shape).transpose(1, 2)

        return PeerCall(run, str(library.__version__))


PEERS: Final = (FlashInfer(),)
