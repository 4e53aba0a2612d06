"""``evoengine.tune_model``: one search for each attention problem of a model, and a lockfile of the kernels found."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from evoengine.api.call_recording import RecordedCall, record_attention
from evoengine.api.gpu import gpu_of
from evoengine.api.kernel_sharing import ChosenKernel, choose_kernels
from evoengine.api.lockfile import LOCK_SUFFIX, lock_text
from evoengine.api.model_timing import ModelTime, time_model
from evoengine.api.serving import forget
from evoengine.api.sources import LOCKFILE
from evoengine.api.tuning import leaderboard_file, search_environment
from evoengine.engine.options.fields import check_fields
from evoengine.engine.options.search import DEFAULT_BUDGET, SearchOptions
from evoengine.engine.options.verbs import TuneModelOptions
from evoengine.engine.search_process import SearchJob, search_in_process
from evoengine.errors import EvoEngineError, NothingFoundError, ProblemError, UsageError
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.search.settings import StopReason
from evoengine.system.files import write_file

MIN_CANDIDATES: Final = 20
"""Minimum number of candidates of a search, unless the whole budget is less."""
MOST_SHARING_COST: Final = 0.03
"""Maximum relative cost of a kernel that a problem shares with another one: the gain that replaces a champion."""
_PREDICTED: Final = (
    "the model's tensors are on the CPU: times are predictions, which no lockfile holds and attention never uses; run "
    "it where torch sees a GPU"
)


@dataclass(frozen=True)
class TunedProblem:
    """One attention problem of a model, and the kernel found for it."""

    call: RecordedCall
    share: float
    """Share of the recorded time of all calls that kernels can serve."""
    candidates: int
    """Part of the budget; 0 if the problem was not searched, and the nearest locked kernel serves it."""
    median_us: float | None = None
    """Time of the chosen kernel, or of the best predicted one."""
    sdpa_us: float | None = None
    """Time of the fastest SDPA backend in the same benchmark."""
    row_id: int | None = None
    """Row in the leaderboard."""
    shared_with: str = ""
    """Key of the problem whose kernel it shares."""
    sharing_cost: float = 0.0
    """Relative time that the shared kernel costs."""
    reason: str = ""
    """Why there is no kernel."""


@dataclass(frozen=True)
class ModelTuning:
    """Result of :func:`tune_model`."""

    problems: tuple[TunedProblem, ...]
    """Problems that were recorded, those with the largest share first."""
    refused: tuple[RecordedCall, ...]
    """Calls that no kernel can serve, each with the reason."""
    leaderboard: str
    """File with the results of all searches."""
    lockfile: str
    """File with the chosen kernels; empty if none was written."""
    predicted: bool
    """Whether times are predictions."""
    times: tuple[ModelTime, ...] = ()
    """End-to-end times, with torch's attention and with EvoEngine's; empty without a GPU."""


def tune_model(
    model: Callable[..., Any],
    *inputs: Any,
    budget: int = DEFAULT_BUDGET,
    time_limit_s: float | None = None,
    leaderboard: str = "",
    lockfile: str = LOCKFILE,
    seed: int = 0,
    most_sharing_cost: float = MOST_SHARING_COST,
    quiet: bool = False,
) -> ModelTuning:
    """Searches for kernels for all attention calls of a model, and writes a lockfile of them.

    The model runs without gradients: once to warm up, once under :func:`record_attention`. Each distinct problem is
    searched in a process of its own, with a part of the budget by its share of the recorded time. On a GPU the model is
    then timed with torch's attention and with the lockfile. To use the kernels, run the model in :func:`replace_sdpa`.

    Args:
        model: Module or function to tune, compiled or not.
        *inputs: Arguments of one call of the model.
        budget: Number of distinct candidates to evaluate, over all problems.
        time_limit_s: Seconds after which searches stop; None for no limit.
        leaderboard: File to search into. The default is EVOENGINE_LEADERBOARD, then ``./leaderboard.db``.
        lockfile: File to write, replacing an older one.
        seed: Random seed of the searches.
        most_sharing_cost: Maximum relative cost of a kernel that a problem shares with another one.
        quiet: Whether to print no progress on stderr.

    Returns:
        The problems, their kernels, and the times of the model.

    Raises:
        NothingFoundError: The model makes no attention call that a kernel can serve.
        EvoEngineError: An argument is invalid, or a search could not run or was interrupted.
    """
    options = TuneModelOptions(Path(), most_sharing_cost=most_sharing_cost, budget=budget, seed=seed)
    _check(model, replace(options, time_limit_s=time_limit_s), leaderboard, lockfile)
    board = leaderboard_file(leaderboard, os.environ)
    calls = recorded_calls(model, inputs)
    done = _searched(_plan(calls, budget), board, time_limit_s, seed, quiet=quiet)
    refused, gpus = tuple(call for call in calls if call.problem is None), _gpus(done)
    if not gpus:
        return ModelTuning(tuple(done), refused, board, "", predicted=True)
    locked = tuple(lock_model(done, board, Path(lockfile), gpus, most_sharing_cost))
    forget()
    with torch.inference_mode():
        times = time_model(model, inputs, str(Path(lockfile).absolute()))
    return ModelTuning(locked, refused, board, lockfile, predicted=False, times=times)


def _check(model: object, options: TuneModelOptions, leaderboard: object, lockfile: object) -> None:
    """Checks arguments before the model runs.

    Raises:
        UsageError: One has another type, or is out of its bounds.
    """
    if not callable(model):
        raise UsageError(f"model must be a module or a function, not a {type(model).__name__}")
    for name, path in (("leaderboard", leaderboard), ("lockfile", lockfile)):
        if not isinstance(path, str):
            raise UsageError(f"{name} must be the path of a file as a str, not a {type(path).__name__}")
    if Path(str(lockfile)).suffix != LOCK_SUFFIX:
        raise UsageError(f"lockfile '{lockfile}': its name ends in {LOCK_SUFFIX}: give another one")
    check_fields(options)


def _plan(calls: Sequence[RecordedCall], budget: int) -> list[TunedProblem]:
    """Divides the budget; warns if times can only be predicted.

    Raises:
        NothingFoundError: There is no call that a kernel can serve.
    """
    plan = planned(calls, budget)
    if not plan:
        reasons = "; ".join(f"{call.what}: {call.reason}" for call in calls[:3])
        raise NothingFoundError(
            f"the model makes no attention call that kernels can serve: {reasons or 'it makes none'}"
        )
    if not _gpus(plan):
        warnings.warn(_PREDICTED, RuntimeWarning, stacklevel=3)
    return plan


def _gpus(problems: Sequence[TunedProblem]) -> dict[int, str]:
    """Returns the names of the GPUs on which calls were made, by their ordinals."""
    devices = sorted({item.call.device for item in problems if item.call.device >= 0})
    return {device: gpu_of(device)[0] for device in devices}


def recorded_calls(model: Callable[..., Any], inputs: Sequence[Any]) -> tuple[RecordedCall, ...]:
    """Returns the attention calls of one pass of a model, after a pass that warms up."""
    with torch.inference_mode():
        for _ in range(2):
            with record_attention() as recorded:
                model(*inputs)
        return recorded.calls


def planned(calls: Sequence[RecordedCall], budget: int) -> list[TunedProblem]:
    """Divides a budget among the problems of recorded calls by their share of the time.

    Each gets :data:`MIN_CANDIDATES` first, those with the largest share before others, and the rest by its share.

    Args:
        calls: Recorded calls; those without a problem get nothing.
        budget: Number of candidates.
    """
    served = sorted((call for call in calls if call.problem is not None), key=lambda call: -call.total_us)
    total_us = sum(call.total_us for call in served)
    number = sum(call.count for call in served)
    shares = [call.total_us / total_us if total_us else call.count / number for call in served]
    searched = min(len(served), max(1, budget // MIN_CANDIDATES))
    least = min(budget, MIN_CANDIDATES)
    rest, ahead = budget - searched * least, sum(shares[:searched])
    plan = []
    for place, (call, share) in enumerate(zip(served, shares, strict=True)):
        candidates = least + int(rest * share / ahead) if place < searched else 0
        plan.append(TunedProblem(call, share, candidates))
    return plan


def _searched(
    plan: Sequence[TunedProblem], board: str, time_limit_s: float | None, seed: int, *, quiet: bool
) -> list[TunedProblem]:
    """Searches the problems one after another, each within its part of what is left of the time."""
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    done = []
    for number, item in enumerate(plan):
        left_s = None if deadline is None else deadline - time.monotonic()
        if item.candidates == 0:
            done.append(replace(item, reason="not searched: the budget went to problems that take more time"))
            continue
        if left_s is not None and left_s <= 0:
            done.append(replace(item, candidates=0, reason="not searched: the time limit had passed"))
            continue
        ahead = sum(other.share for other in plan[number:] if other.candidates)
        limit_s = None if left_s is None else left_s * item.share / ahead if ahead else left_s
        if not quiet:
            part = f"{item.share:.0%} of the attention time, {item.candidates} candidates"
            sys.stderr.write(f"problem {number + 1} of {len(plan)}: {item.call.what}, {part}\n")
        done.append(_search(item, board, limit_s, seed, quiet=quiet))
    return done


def _search(item: TunedProblem, board: str, limit_s: float | None, seed: int, *, quiet: bool) -> TunedProblem:
    problem, device = item.call.problem, item.call.device
    assert isinstance(problem, Problem)
    options = SearchOptions(
        problem,
        budget=item.candidates,
        time_limit_s=limit_s,
        seed=seed,
        db=board,
        device="cuda" if device >= 0 else "auto",
    )
    try:
        result = search_in_process(SearchJob(options, quiet=quiet), search_environment(device))
    except (NothingFoundError, ProblemError) as error:
        return replace(item, reason=str(error))
    if result.stop is StopReason.INTERRUPTED:
        raise EvoEngineError(f"the search was interrupted: call it again to resume it; {board} has all results so far")
    best = result.champion or next(iter(result.elites), None)
    if best is None:
        return replace(item, reason="no correct kernel")
    sdpa_us = None if best.speedup is None or best.median_us is None else best.speedup * best.median_us
    return replace(item, median_us=best.median_us, sdpa_us=sdpa_us, row_id=best.id)


def lock_model(
    problems: Sequence[TunedProblem],
    board: str,
    lockfile: Path,
    gpus: Mapping[int, str],
    most_sharing_cost: float = MOST_SHARING_COST,
) -> list[TunedProblem]:
    """Chooses the kernel of each problem and writes the lockfile.

    Args:
        problems: Problems that were searched on a GPU, those with the largest share first.
        board: Path of the leaderboard.
        lockfile: File to write.
        gpus: Names of the GPUs by their ordinals.
        most_sharing_cost: Maximum relative cost of a kernel that a problem shares with another one.

    Raises:
        NothingFoundError: No problem has a measured kernel.
    """
    chosen: dict[tuple[int, str], ChosenKernel] = {}
    with Leaderboard(database_url(board), create=False) as store:
        for device, gpu in gpus.items():
            wanted = [item.call.problem for item in problems if item.call.device == device and item.call.problem]
            found = choose_kernels(store, gpu, wanted, most_sharing_cost)
            chosen |= {(device, key): kernel for key, kernel in found.items()}
    rows = {(kernel.row.gpu, kernel.row.problem.key): kernel.row for kernel in chosen.values()}
    if not rows:
        reasons = "; ".join(f"{item.call.what}: {item.reason}" for item in problems[:3])
        raise NothingFoundError(f"no problem of the model has a measured kernel: {reasons}")
    write_file(lockfile, lock_text(rows.values()))
    return [_with_kernel(item, chosen.get((item.call.device, item.call.what))) for item in problems]


def _with_kernel(item: TunedProblem, kernel: ChosenKernel | None) -> TunedProblem:
    if kernel is None:
        return item
    row = kernel.row
    return replace(
        item,
        median_us=row.median_us,
        sdpa_us=row.baseline_us,
        row_id=row.row_id,
        shared_with=kernel.shared_with,
        sharing_cost=kernel.cost,
    )
