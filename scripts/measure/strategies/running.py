"""Runs tasks, in parallel and from a cache of finished runs."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.landscape.synthetic import analytical_landscape
from evoengine.model import Config
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Proposal
from strategies.kernel_tuner_runs import SimulatedSpace
from strategies.run_cache import RunCache, kernel_tuner_sources, our_sources, peer_sources
from strategies.tasks import KERNEL_TUNER, OURS, PEER_CLASSES, PEERS, Run, Task


def run_all(tasks: list[Task], jobs: int, stored: RunCache | None) -> list[Run]:
    """Runs tasks on several cores, or loads them; progress goes to stderr."""
    start_s, runs = time.monotonic(), []
    for library in ("OPENBLAS", "OMP", "MKL"):  # one core per run; idle library threads would spin on it
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    os.environ.setdefault("PYTHONHASHSEED", "0")  # the order of a set of texts
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for run in pool.map(partial(run_cached, stored), tasks, chunksize=4):
            runs.append(run)
            if len(runs) % max(1, len(tasks) // 20) == 0:
                took_s = time.monotonic() - start_s
                print(f"{len(runs)} of {len(tasks)} runs, {took_s:.0f} s", file=sys.stderr)
    return runs


def sources(tuners: Iterable[str]) -> dict[str, str]:
    """Returns a hash of the sources that the runs of each tuner depend on."""
    hashes = {OURS: our_sources, PEERS: peer_sources, KERNEL_TUNER: kernel_tuner_sources}
    return {tuner: hashes[tuner]() for tuner in tuners}


def run_cached(stored: RunCache | None, task: Task) -> Run:
    """Loads a stored run, or runs the task and stores it."""
    known = None if stored is None else load_run(stored, task)
    if known is not None:
        return known
    run = run_task(task)
    if stored is not None:
        stored.save(_facts(stored, task), {"shares": run.shares, "seconds": run.seconds})
    return run


def load_run(stored: RunCache, task: Task) -> Run | None:
    """Returns the stored run of a task, or None."""
    known = stored.load(_facts(stored, task))
    return None if known is None else Run(task, tuple(known["shares"]), known["seconds"])


def _facts(stored: RunCache, task: Task) -> dict[str, Any]:
    """Returns everything that determines the result of a task."""
    return asdict(task) | {"landscape": landscape_of(task.landscape).key, "sources": stored.sources[task.tuner]}


def run_task(task: Task) -> Run:
    """Runs one strategy, in this process."""
    landscape = landscape_of(task.landscape)
    walk = _simulated_walk if task.tuner == KERNEL_TUNER else _asked_walk
    if task.tuner == KERNEL_TUNER:
        _simulated(task.landscape).prepare(task.order)  # not part of the strategy's time
    start_s = time.process_time()
    optimum_us, best_us, shares = median_us(landscape.best), float("inf"), []
    for config in walk(landscape, task):
        us = landscape.by_config[config].value_us
        best_us = best_us if us is None else min(best_us, us)
        shares.append(optimum_us / best_us)
    return Run(task, tuple(shares), time.process_time() - start_s)


def _asked_walk(landscape: Landscape, task: Task) -> Iterator[Config]:
    """Yields the proposals of a strategy; the result of each is returned ``lag`` proposals later."""
    strategy = make_strategy(PEER_CLASSES.get(task.strategy, task.strategy), landscape.spaces, task.seed)
    pending: deque[Proposal] = deque()
    for _ in range(min(task.budget, len(landscape.evaluations))):
        if len(pending) > task.lag:
            told = pending.popleft()
            outcome = landscape.by_config[told.config]
            strategy.tell(told, outcome.value_us, outcome.status)
        proposal = strategy.ask(task.lag)
        if proposal is None:
            return
        pending.append(proposal)
        yield proposal.config


def _simulated_walk(landscape: Landscape, task: Task) -> Iterator[Config]:
    space = _simulated(task.landscape)
    family = landscape.families[0].name
    for values in space.run(task.strategy, task.seed, task.budget, task.order)[: task.budget]:
        yield Config.of(family, dict(zip(space.names, values, strict=True)))


@cache
def landscape_of(name: str) -> Landscape:
    """Returns the landscape of a file, or the one that is computed by a formula for ``synthetic``."""
    return analytical_landscape() if name == "synthetic" else read_landscape(name)


@cache
def _simulated(name: str) -> SimulatedSpace:
    return SimulatedSpace(landscape_of(name))
