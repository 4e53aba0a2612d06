"""Tri Dao's flash-attn: version 2, version 3 (Hopper) and version 4 (CuTe), each a package of its own.

All three take ``[batch, seq, heads, head_dim]``, or packed rows ``[rows, heads, head_dim]``, align masks bottom-right,
and support grouped heads. Version 4 supports sinks too: 4.0.0b36 in f32, as ours are, older releases in bf16 only.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError, load


@dataclass(frozen=True)
class FlashAttn:
    """One major version."""

    name: str
    modules: tuple[str, ...]
    """Modules that may define its functions, newest first."""
    packages: tuple[str, ...]
    """Distributions that may state the version."""
    no_window: int | None = -1
    """Value for "all keys" on a side of ``window_size``."""
    lse_flag: str = "return_attn_probs"
    """Argument that requests the log-sum-exp."""
    sink_argument: str = ""
    """Argument that takes the sink logits ``[heads]``; empty if it has none."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Copies the tensors to the library's layout."""
        attention = self._find("flash_attn_varlen_func" if inputs.problem.packed else "flash_attn_func")
        inputs.supports_only("window", "softcap", "lse", "packed", *(["sink"] if self.sink_argument else []))
        inputs.require_gpu()
        problem = inputs.problem
        q, k, v = inputs.rows_outside_heads()
        arguments = self._arguments(inputs)
        if problem.packed:
            q, k, v = (tensor[0] for tensor in (q, k, v))

        def run() -> PeerOutput:
            result: Any = attention(q, k, v, **arguments)
            o, lse = result[:2] if isinstance(result, tuple | list) else (result, None)  # some always return it
            if problem.packed:
                o, lse = o[None], None if lse is None else lse[None]
            return PeerOutput(o.transpose(1, 2), lse)

        return PeerCall(run, self._version())

    def _arguments(self, inputs: PeerInputs) -> dict[str, Any]:
        """Builds only the arguments that the problem needs: older releases support fewer."""
        problem = inputs.problem
        arguments: dict[str, Any] = {"causal": problem.causal}
        left, right = (self.no_window if size is None else size for size in inputs.window)
        if problem.window_left is not None or problem.window_right is not None:
            arguments["window_size"] = (left, right)
        if problem.softcap:
            arguments["softcap"] = problem.softcap
        if problem.lse:
            arguments[self.lse_flag] = True
        if problem.sink:
            arguments[self.sink_argument] = inputs.sink
        if problem.packed:
            arguments |= {
                "cu_seqlens_q": inputs.starts_q,
                "cu_seqlens_k": inputs.starts_kv,
                "max_seqlen_q": problem.seq_q,
                "max_seqlen_k": problem.seq_kv,
            }
        return arguments

    def _find(self, function: str) -> Any:
        reasons = []
        for module in self.modules:
            try:
                found = getattr(load(module), function, None)
            except PeerUnavailableError as error:
                reasons.append(str(error))
                continue
            if found is not None:
                return found
        # With version 4 alone, "flash_attn" is a bare namespace package and not version 2.
        telling = [reason for reason in reasons if reason != "not installed"]
        raise PeerUnavailableError(telling[0] if telling else "not installed")

    def _version(self) -> str:
        for package in self.packages:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return ""


ORDER: Final = 5
PEERS: Final = (
    FlashAttn("flash-attn-2", ("flash_attn",), ("flash-attn",)),
    FlashAttn("flash-attn-3", ("flash_attn_interface", "flash_attn_3.flash_attn_interface"), ("flash-attn-3",)),
    FlashAttn("flash-attn-4", ("flash_attn.cute",), ("flash-attn-4", "fa4"), None, "return_lse", "learnable_sink"),
)
