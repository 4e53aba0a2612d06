"""A search on the synthetic device in a separate process, forked from a server that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from tests.search.landscape import NoisyForecast, build_space, true_us
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, many_faults, open_search

WORKERS = 2
"""Workers of each service. Results repeat only for the same number of workers."""


def kernel_of(config: Config) -> Config:
    """UNROLL changes nothing: pairs of configs are one kernel, with one time and one fault."""
    return Config.of(config.family, config.as_dict() | {"UNROLL": False})


def run_search(database: str, folder: str, settings: SearchSettings, slow_s: float = 0.0) -> str:
    """Runs or resumes a search; returns why it ended."""
    space = build_space(Path(folder))
    with Leaderboard(database) as board:
        compiler = SyntheticCompiler(
            WORKERS,
            code_of=lambda config: kernel_of(config).key,
            fault_of=lambda config: many_faults(kernel_of(config)),
        )
        examiner = SyntheticExaminer(
            WORKERS,
            value_of=lambda config: true_us(kernel_of(config)),
            fault_of=lambda config: many_faults(kernel_of(config)),
            slow_s=slow_s,
        )
        pruner = ForecastPruner({space.family: NoisyForecast()})
        search, _ = open_search(board, space, settings, compiler, examiner, pruner=pruner, log_trials=True)
        return search.run().stop.name


def server() -> ForkServerContext:
    """Returns the fork server of the search processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.search.killable", "evoengine.search.strategies.builtin.evolution", "evoengine.search.trial_log"]
    )
    return context


def start(
    context: ForkServerContext, database: str, folder: Path, settings: SearchSettings, slow_s: float
) -> tuple[ForkServerProcess, Connection]:
    """Starts a search; the connection receives "ready" before it begins, and then why it ended."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(there, database, str(folder), settings, slow_s))
    process.start()
    there.close()
    return process, here


def _main(pipe: Connection, database: str, folder: str, settings: SearchSettings, slow_s: float) -> None:
    os.setpgid(0, 0)  # its own process group, so that one signal kills all of it
    pipe.send("ready")
    pipe.send(run_search(database, folder, settings, slow_s))
