"""``evoengine.attention`` and ``evoengine.explain``: calls on tensors, served by what searches found."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Final

import torch

from evoengine.api.choosing import Chooser
from evoengine.api.explanation import Explanation
from evoengine.api.gpu import gpu_of
from evoengine.api.plans import plan_of
from evoengine.api.problems import problem_of, unsupported
from evoengine.api.selection import NoSelection, Selection
from evoengine.api.sources import find_source
from evoengine.errors import NothingFoundError
from evoengine.runtime.call import Call, Options, read_call
from evoengine.runtime.dispatch import Dispatcher
from evoengine.runtime.launcher import Plan
from evoengine.runtime.lookup import Tensors
from evoengine.runtime.ops import wants_gradient
from evoengine.runtime.torch_fallback import sdpa_does

NAMESPACE: Final = "evoengine"
"""Of the custom ops: ``torch.ops.evoengine.attention``."""


_CHOOSER: Final = Chooser()


def _resolve(call: Call, device: int, required: bool, leaderboard: str) -> Plan | None:
    found = _CHOOSER.choose(call, device, find_source(leaderboard), even_if_slower=required)
    if isinstance(found, Selection):
        return plan_of(found.kernel, call)
    if required:
        raise NothingFoundError(f"no kernel serves this call, and fallback is off: {'; '.join(found.reasons)}")
    return None


_DOOR: Final = Dispatcher(NAMESPACE, _resolve)
attention: Final = _DOOR.attention


def forget() -> None:
    """Drops what was resolved: the next call of each kind looks at the leaderboard, or the lockfile, again."""
    _CHOOSER.forget()
    _DOOR.forget()


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Explanation:
    """Says what serves ``attention`` with the same arguments, and why. Nothing runs but a kernel's first check.

    Args:
        q: as for :data:`attention`.
        k: likewise.
        v: likewise.
        **options: likewise.

    Raises:
        ValueError: the tensors and options make no call.
        EvoEngineError: the leaderboard or the lockfile cannot be used.
    """
    asked = bind(q, k, v, options)
    call = read_call(*asked.tensors, asked.options)
    device = q.get_device() if q.is_cuda else -1
    source = find_source(asked.leaderboard)
    if torch.is_grad_enabled() and wants_gradient(*asked.tensors[:4]):
        found: Selection | NoSelection = NoSelection(("a gradient is asked for, which kernels do not have",))
    else:
        found = _CHOOSER.choose(call, device, source, even_if_slower=not asked.fallback)
    where = gpu_of(device)[0] if device >= 0 else q.device.type
    key = "" if unsupported(call) else problem_of(call).key
    path = str(source.path) if source is not None else ""
    if isinstance(found, NoSelection):
        return Explanation(
            "sdpa" if sdpa_does(asked.options, asked.tensors[3]) else "plain", key, where, found.reasons, path
        )
    row = found.row
    return Explanation(
        server="champion" if row.champion and found.exact else "elite",
        problem=key,
        device=where,
        reasons=found.notes,
        source=path,
        searched_problem=row.problem.key,
        row_id=row.row_id,
        family=row.config.family,
        config=str(row.config),
        median_us=row.median_us,
        speedup=row.speedup,
        source_hash=found.kernel.source.source_hash,
        code_hash=found.kernel.binary.code_hash,
    )


@dataclass(frozen=True, eq=False)
class Asked:
    """The arguments of a call, sorted."""

    tensors: Tensors
    options: Options
    fallback: bool
    leaderboard: str


def bind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Asked:
    """Reads the keyword arguments of ``attention``.

    Raises:
        TypeError: one is unknown.
        ValueError: they make no call.
    """
    bound = inspect.signature(attention).bind(q, k, v, **options)
    bound.apply_defaults()
    given = bound.arguments
    left, right = given["window"]
    starts_q, starts_kv = given["cu_seqlens_q"], given["cu_seqlens_kv"]
    read = Options(
        causal=given["causal"],
        window_left=-1 if left is None else left,
        window_right=-1 if right is None else right,
        softcap=given["softcap"],
        scale=given["scale"],
        lse=given["return_lse"],
        layout=given["layout"],
        max_seqlen_q=given["max_seqlen_q"] or 0,
        max_seqlen_kv=given["max_seqlen_kv"] or 0,
    )
    return Asked((q, k, v, given["sink"], starts_q, starts_kv), read, given["fallback"], given["leaderboard"])
