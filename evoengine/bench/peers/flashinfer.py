"""FlashInfer's batched prefill over ragged keys, with its plan made before timing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError, load

if TYPE_CHECKING:
    import torch

_WORKSPACE_BYTES: Final = 128 * 2**20
"""Size that its documentation recommends."""


class FlashInfer:
    """``flashinfer.BatchPrefillWithRaggedKVCacheWrapper``; its causal mask is aligned bottom-right."""

    name: Final = "flashinfer"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Plans on the host; the first call may compile."""
        library = load("flashinfer")
        inputs.supports_only("window", "softcap", "packed")  # its log-sum-exp is in base 2
        inputs.require_gpu()
        import torch

        problem = inputs.problem
        if problem.window_right is not None:
            raise PeerUnavailableError("does not do windows after the diagonal")
        # Ragged tensors are [rows of all sequences, heads, head_dim], with the sequences concatenated.
        q, k, v = (tensor.flatten(0, 1) for tensor in inputs.rows_outside_heads())
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
        wrapper: Any = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            inputs.starts_q,
            inputs.starts_kv,
            problem.heads,
            problem.kv_heads,
            problem.head_dim,
            causal=problem.causal,
            window_left=-1 if problem.window_left is None else problem.window_left,
            logits_soft_cap=problem.softcap or None,
            q_data_type=q.dtype,
        )
        shape = (problem.memory_batch, problem.rows_q, problem.heads, problem.head_dim)

        def run() -> PeerOutput:
            output: torch.Tensor = wrapper.run(q, k, v)
            return PeerOutput(output.view(shape).transpose(1, 2))

        return PeerCall(run, str(library.__version__))


ORDER: Final = 7
PEERS: Final = (FlashInfer(),)
