"""``evoengine.attention`` and ``evoengine.explain``: attention on tensors with the kernels of a leaderboard."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import torch

from evoengine.api.calls import plan_of, problem_of, unsupported
from evoengine.api.explanation import Explanation
from evoengine.api.gpu import gpu_of
from evoengine.api.selection import NoSelection, Selection
from evoengine.api.selection_cache import SelectionCache
from evoengine.api.sources import find_source
from evoengine.errors import NothingFoundError
from evoengine.runtime.autocast import cast_by_autocast
from evoengine.runtime.call import Call, CallStrides, Options, call_strides, read_call, read_options
from evoengine.runtime.dispatch import ARGUMENTS, Dispatcher, check_call
from evoengine.runtime.launcher import KernelPlan
from evoengine.runtime.lookup import Tensors
from evoengine.runtime.ops import wants_gradient
from evoengine.runtime.sdpa_arguments import causal_flag, scale_value, torch_only
from evoengine.runtime.torch_fallback import sdpa_supports

NAMESPACE: Final = "evoengine"
"""Namespace of the custom ops: ``torch.ops.evoengine.attention``."""

_SELECTIONS: Final = SelectionCache()


def _resolve(call: Call, device: int, required: bool, leaderboard: str, strides: CallStrides) -> KernelPlan | None:
    found = _SELECTIONS.choose(call, device, find_source(leaderboard), strides, even_if_slower=required)
    if isinstance(found, Selection):
        return plan_of(found.kernel, call)
    if required:
        raise NothingFoundError(f"no kernel for this call, and fallback is off: {'; '.join(found.reasons)}")
    return None


_DISPATCHER: Final = Dispatcher(NAMESPACE, _resolve)
attention: Final = _DISPATCHER.attention
wrapping_launchers: Final = _DISPATCHER.wrapping
"""Wraps the launchers of all calls of ``attention``; see :meth:`Dispatcher.wrapping`."""


def forget() -> None:
    """Clears all caches: the next call of each kind reads the leaderboard or lockfile again."""
    _SELECTIONS.forget()
    _DISPATCHER.forget()


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Explanation:
    """Explains what computes ``attention`` with the same arguments, without computing it.

    A kernel that this process has not tried yet for such a call runs once, on random tensors with the same strides.

    Args:
        q: Queries, as for ``attention``.
        k: Keys, as for ``attention``.
        v: Values, as for ``attention``.
        **options: Keyword arguments of ``attention``.

    Raises:
        ValueError: The tensors and options are not a valid call.
        EvoEngineError: The leaderboard or lockfile cannot be read, or a locked kernel cannot be built.
    """
    bound = bind(q, k, v, options)
    q, k, v = bound.tensors[:3]
    where = gpu_of(q.get_device())[0] if q.is_cuda else q.device.type
    if bound.torch_only:
        return Explanation("sdpa", "", where, (bound.torch_only, *bound.refusals))
    call = read_call(*bound.tensors, bound.options)
    device = q.get_device() if q.is_cuda else -1
    source = find_source(bound.leaderboard)
    if torch.is_grad_enabled() and wants_gradient(*bound.tensors[:4]):
        found: Selection | NoSelection = NoSelection(("the call needs a gradient, which kernels do not compute",))
    else:
        strides = call_strides((q, k, v), call, bound.options.layout)
        found = _SELECTIONS.choose(call, device, source, strides, even_if_slower=not bound.fallback)
    key = "" if unsupported(call) else problem_of(call).key
    path = str(source.path) if source is not None else ""
    if isinstance(found, NoSelection):
        plain = not sdpa_supports(bound.options, bound.tensors[3])
        return Explanation("plain" if plain else "sdpa", key, where, (*found.reasons, *bound.refusals), path)
    row = found.row
    return Explanation(
        server="champion" if row.champion and found.exact else "elite",
        problem=key,
        device=where,
        reasons=(*_padding_note(q, call), *found.notes),
        source=path,
        searched_problem=row.problem.key,
        row_id=row.row_id,
        family=row.config.family,
        config=str(found.kernel.source.config),
        median_us=None if found.changed else row.median_us,
        speedup=None if found.changed else row.speedup,
        source_hash=found.kernel.source.source_hash,
        code_hash=found.kernel.binary.code_hash,
    )


def _padding_note(q: torch.Tensor, call: Call) -> tuple[str, ...]:
    if q.shape[-1] == call.head_dim:
        return ()
    return (f"Q, K and V are padded with zeros from head_dim {q.shape[-1]} to {call.head_dim}",)


@dataclass(frozen=True, eq=False)
class BoundCall:
    """Arguments of a call by their purpose."""

    tensors: Tensors
    options: Options
    fallback: bool
    leaderboard: str
    torch_only: str = ""
    """Why the arguments leave the call to torch; empty if a kernel could compute it."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """Reason to add if no kernel computes the call; empty if torch may compute it."""
        return () if self.fallback else ("fallback is off: attention raises an error",)


def bind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> BoundCall:
    """Binds the arguments of ``attention``.

    Raises:
        TypeError: A keyword argument is unknown, or an argument has another type.
        ValueError: The tensors and options are not a valid call, or ``causal`` and ``is_causal`` contradict each other.
    """
    bound = inspect.signature(attention).bind(q, k, v, **options)
    bound.apply_defaults()
    given = bound.arguments
    given["scale"] = scale_value(given["scale"])
    q, k, v = cast_by_autocast(q, k, v)
    starts_q, starts_kv = given["cu_seqlens_q"], given["cu_seqlens_kv"]
    tensors = (q, k, v, given["sink"], starts_q, starts_kv)
    check_call(tuple(given[name] for name in ARGUMENTS), *tensors)
    layout, is_causal = given["layout"], given["is_causal"]
    read = read_options({**given, "causal": causal_flag(q, k, given["causal"], is_causal, layout)})
    only = torch_only(q, k, given["attn_mask"], given["dropout_p"], bool(is_causal), layout)
    return BoundCall(tensors, read, given["fallback"], given["leaderboard"], only)
