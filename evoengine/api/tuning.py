"""``evoengine.tune``: a search for just one call's problem, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from evoengine.api.calls import problem_of, unsupported
from evoengine.api.explanation import Explanation
from evoengine.api.lockfile import LOCK_SUFFIX
from evoengine.api.serving import BoundCall, bind, explain, forget
from evoengine.api.sources import LEADERBOARD, LEADERBOARD_VARIABLE
from evoengine.errors import EvoEngineError, NothingFoundError, ProblemError, StoreError
from evoengine.model import Problem
from evoengine.runtime.call import read_call

_NOTHING_FOUND: Final = 1
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


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
    """Searches for the fastest correct kernel for a call's problem; from then on ``attention`` uses what was found.

    It is the command ``search`` in a process of its own: workers are forked there, which a process with CUDA in it must
    not do. Several tunings of one problem add up, as repeated searches do. Without a GPU times are predicted, and
    ``attention`` goes on with torch's own.

    Args:
        q: as for ``attention``.
        k: likewise.
        v: likewise.
        budget: distinct candidates to evaluate.
        seed: of the search.
        quiet: no progress on stderr.
        **options: as for ``attention``; ``leaderboard`` names the file to search into, else EVOENGINE_LEADERBOARD does,
            else it is ``./leaderboard.db``.

    Returns:
        What serves the call now.

    Raises:
        ProblemError: no kernel can serve such a call.
        NothingFoundError: the search ended without a correct kernel.
        EvoEngineError: the search could not run; the message is its own.
    """
    asked = bind(q, k, v, options)
    problem = _problem(asked)
    board = _leaderboard(asked.leaderboard, os.environ)
    command = [sys.executable, "-m", "evoengine", "search", *search_flags(problem), "--db", board]
    command += ["--budget", str(budget), "--seed", str(seed), *(["--quiet"] if quiet else [])]
    command += ["--device", "cuda" if q.is_cuda else "auto"]
    done = subprocess.run(
        command,
        env=_environment(q.get_device() if q.is_cuda else -1),
        stdout=subprocess.PIPE,
        stderr=None if not quiet else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or "the search failed; what it said stands above").strip().splitlines()
        kind = NothingFoundError if done.returncode == _NOTHING_FOUND else EvoEngineError
        raise kind(lines[-1].removeprefix("error: "))
    forget()
    return explain(q, k, v, **(options | {"leaderboard": board}))


def search_flags(problem: Problem) -> Iterator[str]:
    """The options of ``search`` that name a problem."""
    yield from ("--problem", f"{problem.batch}x{problem.heads}x{problem.seq_q}x{problem.head_dim}")
    yield from ("--kv-heads", str(problem.kv_heads), "--seq-kv", str(problem.seq_kv), "--dtype", problem.dtype.value)
    if problem.window_left is not None or problem.window_right is not None:
        right = 0 if problem.causal else problem.window_right
        yield from ("--window", ",".join("inf" if size is None else str(size) for size in (problem.window_left, right)))
    elif problem.causal:
        yield "--causal"
    if problem.softcap:
        yield from ("--softcap", str(problem.softcap))
    yield from (flag for flag, on in (("--sink", problem.sink), ("--lse", problem.lse)) if on)
    if problem.packed:
        yield from ("--lengths", ",".join(map(str, problem.lengths_q)))
        yield from ("--lengths-kv", ",".join(map(str, problem.lengths_kv)))


def _problem(asked: BoundCall) -> Problem:
    """The problem of a call, with the true lengths of packed sequences."""
    call = read_call(*asked.tensors, asked.options)
    reason = unsupported(call)
    if reason:
        raise ProblemError(f"there is nothing to search for: {reason}")
    problem = problem_of(call)
    starts_q, starts_kv = asked.tensors[4:]
    if starts_q is None or starts_kv is None:
        return problem
    lengths_q, lengths_kv = (tuple(torch.diff(starts).tolist()) for starts in (starts_q, starts_kv))
    return replace(problem, seq_q=max(lengths_q), seq_kv=max(lengths_kv), lengths_q=lengths_q, lengths_kv=lengths_kv)


def _leaderboard(argument: str, environment: Mapping[str, str]) -> str:
    name = (argument or environment.get(LEADERBOARD_VARIABLE, "") or LEADERBOARD).removeprefix("sqlite:///")
    if Path(name).suffix == LOCK_SUFFIX:
        raise StoreError(f"{name} is a lockfile, which a search cannot write to: name a leaderboard")
    return name


def _environment(device: int) -> dict[str, str]:
    """The search sees the tensors' GPU as its first, and this very package."""
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    if device >= 0:
        visible = [name for name in environment.get(_VISIBLE, "").split(",") if name]
        environment[_VISIBLE] = visible[device] if device < len(visible) else str(device)
    return environment
