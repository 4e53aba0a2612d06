"""``evoengine.tune``: a search for one call's problem, in a process of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from evoengine.api.calls import problem_of, unsupported
from evoengine.api.explanation import Explanation
from evoengine.api.lockfile import LOCK_SUFFIX
from evoengine.api.serving import BoundCall, bind, explain, forget
from evoengine.api.sources import LEADERBOARD, LEADERBOARD_VARIABLE
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.search_process import SearchJob, search_in_process
from evoengine.errors import EvoEngineError, ProblemError, StoreError
from evoengine.leaderboard.database.connection import database_name
from evoengine.leaderboard.database.server_url import is_server
from evoengine.model import Problem
from evoengine.runtime.call import read_call
from evoengine.search.settings import StopReason

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ON_CPU: Final = (
    "tune got tensors on the CPU, where attention always uses torch; without a GPU the search only predicts times, and "
    "predicted rows never serve attention: pass tensors on a GPU"
)


def tune(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    budget: int = 200,
    seed: int = 0,
    quiet: bool = False,
    **options: Any,
) -> Explanation:
    """Searches for the fastest correct kernel for a call's problem, for use by later calls of ``attention``.

    The search runs in a process of its own, because its workers are forked and a process that uses CUDA must not fork.
    Repeated calls for one problem add to the same study. Without a GPU, times are predicted and ``attention`` keeps
    using torch; a warning before the search says so.

    Args:
        q: Queries, as for ``attention``.
        k: Keys, as for ``attention``.
        v: Values, as for ``attention``.
        budget: Number of distinct candidates to evaluate.
        seed: Random seed of the search.
        quiet: Whether to print no progress on stderr.
        **options: Further arguments of ``attention``. ``leaderboard`` names the file to search into; the default is
            EVOENGINE_LEADERBOARD, then ``./leaderboard.db``.

    Returns:
        The kernel that serves the call now.

    Raises:
        ProblemError: No kernel can serve such a call.
        NothingFoundError: The search ended without a correct kernel.
        EvoEngineError: The search could not run, or was interrupted.
    """
    asked = bind(q, k, v, options)
    problem = asked_problem(asked)
    board = leaderboard_file(asked.leaderboard, os.environ)
    device = "cuda" if q.is_cuda else "auto"
    job = SearchJob(SearchOptions(problem, budget=budget, seed=seed, db=board, device=device), quiet=quiet)
    if not q.is_cuda:
        warnings.warn(_ON_CPU, RuntimeWarning, stacklevel=2)
    result = search_in_process(job, search_environment(q.get_device() if q.is_cuda else -1))
    if result.stop is StopReason.INTERRUPTED:
        raise EvoEngineError(
            f"the search was interrupted: call tune again to resume it; {board} has all results so far"
        )
    forget()
    return explain(q, k, v, **(options | {"leaderboard": board}))


def asked_problem(asked: BoundCall) -> Problem:
    """Returns the problem of a call, with the actual lengths of packed sequences.

    Raises:
        ProblemError: No kernel can serve such a call.
    """
    call = read_call(*asked.tensors, asked.options)
    reason = asked.torch_only or unsupported(call)
    if reason:
        raise ProblemError(f"no kernel can be searched for: {reason}")
    problem = problem_of(call)
    starts_q, starts_kv = asked.tensors[4:]
    if starts_q is None or starts_kv is None:
        return problem
    lengths_q, lengths_kv = (tuple(torch.diff(starts).tolist()) for starts in (starts_q, starts_kv))
    return replace(problem, seq_q=max(lengths_q), seq_kv=max(lengths_kv), lengths_q=lengths_q, lengths_kv=lengths_kv)


def leaderboard_file(argument: str, environment: Mapping[str, str]) -> str:
    """Returns the leaderboard to search into: the argument, EVOENGINE_LEADERBOARD, or ``leaderboard.db``.

    Raises:
        StoreError: It is a lockfile.
    """
    name = (argument or environment.get(LEADERBOARD_VARIABLE, "") or LEADERBOARD).removeprefix("sqlite:///")
    if is_server(name):
        raise StoreError(f"the leaderboard is {database_name(name)}, and a call is tuned in a file: give a .db file")
    if Path(name).suffix == LOCK_SUFFIX:
        raise StoreError(f"{name} is a lockfile, and a search needs a leaderboard: give a .db file")
    return name


def search_environment(device: int) -> dict[str, str]:
    """Returns the environment of the search: the tensors' GPU is its only one, and it imports this package.

    Args:
        device: Ordinal of the GPU; -1 for the CPU.
    """
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    if device >= 0:
        visible = [name for name in environment.get(_VISIBLE, "").split(",") if name]
        environment[_VISIBLE] = visible[device] if device < len(visible) else str(device)
    return environment
