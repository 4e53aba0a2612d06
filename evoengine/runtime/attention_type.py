"""The type of ``evoengine.attention`` for type checkers: its arguments, and a result that depends on ``return_lse``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

if TYPE_CHECKING:
    import torch

    from evoengine.runtime.launcher import Result

Window = tuple[int | None, int | None]


class AttentionFunction(Protocol):
    """The public ``attention``; documented by :data:`~evoengine.runtime.docstrings.ATTENTION_DOC`.

    The last signature is for calls with unpacked tensors, ``attention(*qkv)``, whose number a type checker cannot know.
    """

    @overload
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        *,
        scale: float | torch.Tensor | None = None,
        enable_gqa: bool = False,
        causal: bool | None = None,
        window: Window = (None, None),
        softcap: float = 0.0,
        sink: torch.Tensor | None = None,
        return_lse: Literal[False] = False,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> torch.Tensor: ...

    @overload
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        *,
        scale: float | torch.Tensor | None = None,
        enable_gqa: bool = False,
        causal: bool | None = None,
        window: Window = (None, None),
        softcap: float = 0.0,
        sink: torch.Tensor | None = None,
        return_lse: Literal[True],
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    @overload
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        *,
        scale: float | torch.Tensor | None = None,
        enable_gqa: bool = False,
        causal: bool | None = None,
        window: Window = (None, None),
        softcap: float = 0.0,
        sink: torch.Tensor | None = None,
        return_lse: bool,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> Result: ...

    @overload
    def __call__(
        self,
        *tensors: torch.Tensor,
        scale: float | torch.Tensor | None = None,
        enable_gqa: bool = False,
        causal: bool | None = None,
        is_causal: bool | None = None,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        window: Window = (None, None),
        softcap: float = 0.0,
        sink: torch.Tensor | None = None,
        return_lse: bool = False,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> Any: ...
