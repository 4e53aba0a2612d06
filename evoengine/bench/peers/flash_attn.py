"""Tri Dao's flash-attn: version 2, version 3 (Hopper) and version 4 (CuTe), each a package of its own.

All three take ``[batch, seq, heads, head_dim]``, align the causal mask bottom-right, and take grouped heads.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peers.base import PeerCall, PeerInputs, PeerUnavailableError, load

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FlashAttn:
    """One major version."""

    name: str
    modules: tuple[str, ...]
    """Where ``flash_attn_func`` may live, the newest place first."""
    packages: tuple[str, ...]
    """Distributions that may tell the version."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Lays the tensors out as the library likes them."""
        attention = self._find()
        inputs.require_gpu()
        q, k, v = inputs.rows_outside_heads()
        causal = inputs.problem.causal

        def run() -> torch.Tensor:
            result: Any = attention(q, k, v, causal=causal)
            output: torch.Tensor = result[0] if isinstance(result, tuple | list) else result  # some return the LSE too
            return output.transpose(1, 2)

        return PeerCall(run, self._version())

    def _find(self) -> Any:
        reasons = []
        for module in self.modules:
            try:
                found = getattr(load(module), "flash_attn_func", None)
            except PeerUnavailableError as error:
                reasons.append(str(error))
                continue
            if found is not None:
                return found
        # Version 4 alone makes a bare namespace package "flash_attn", which is no version 2.
        telling = [reason for reason in reasons if reason != "not installed"]
        raise PeerUnavailableError(telling[0] if telling else "not installed")

    def _version(self) -> str:
        for package in self.packages:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return ""


PEERS: Final = (
    FlashAttn("flash-attn-2", ("flash_attn",), ("flash-attn",)),
    FlashAttn("flash-attn-3", ("flash_attn_interface", "flash_attn_3.flash_attn_interface"), ("flash-attn-3",)),
    FlashAttn("flash-attn-4", ("flash_attn.cute",), ("flash-attn-4", "fa4")),
)
