"""PyTorch's own kernel for packed sequences; other problems are left to SDPA's backends."""

from __future__ import annotations

import inspect
from typing import Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError, load


class TorchVarlen:
    """``torch.nn.attention.varlen.varlen_attn``; masks are aligned bottom-right."""

    name: Final = "torch-varlen"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Copies the rows to ``[rows, heads, head_dim]``."""
        library = load("torch.nn.attention.varlen")
        inputs.supports_only("window", "lse", "packed")
        problem = inputs.problem
        if not problem.packed:
            raise PeerUnavailableError("takes packed sequences only")
        inputs.require_gpu()
        q, k, v = (tensor[0] for tensor in inputs.rows_outside_heads())
        sequences = (inputs.starts_q, inputs.starts_kv, problem.seq_q, problem.seq_kv)
        arguments: dict[str, Any] = {}
        if problem.masked:
            left, right = inputs.window
            arguments["window_size"] = (-1 if left is None else left, -1 if right is None else right)
        if problem.heads != problem.kv_heads:
            if "enable_gqa" not in inspect.signature(library.varlen_attn).parameters:
                raise PeerUnavailableError("does not do grouped heads in this version of torch")
            arguments["enable_gqa"] = True
        if problem.lse:
            arguments["return_aux"] = library.AuxRequest(lse=True)

        def run() -> PeerOutput:
            result: Any = library.varlen_attn(q, k, v, *sequences, **arguments)
            o, lse = result if problem.lse else (result, None)
            return PeerOutput(o[None].transpose(1, 2), None if lse is None else lse[None])

        return PeerCall(run)


ORDER: Final = 2
PEERS: Final = (TorchVarlen(),)
