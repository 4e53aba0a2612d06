"""Runs of Kernel Tuner's strategies on a landscape, in its own simulation mode; for ``strategy_benchmark.py``.

Kernel Tuner (1.5.0) is not a dependency; install it with ``python -m pip install kernel_tuner==1.5.0``.

The order of the configs matters to it: a proposal that is not valid is replaced by the first of its valid neighbours,
and a Latin hypercube by the first of the nearest configs. Its own order is that in which its solver builds the space
from the values of the parameters and a restriction. Other orders are shuffles of that one.

All of its randomness follows from the seed: Python's and NumPy's global generators are seeded, and so is SciPy's Latin
hypercube, to which Kernel Tuner passes no seed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from evoengine.interop.kernel_tuner import cache_document
from evoengine.landscape.landscape import Landscape

STRATEGIES: Final = (
    "random_sample",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "simulated_annealing",
    "dual_annealing",
    "minimize",
    "basinhopping",
    "mls",
    "greedy_mls",
    "ordered_greedy_mls",
    "greedy_ils",
    "adaptive_tabu_greywolf",
    "bayes_opt",
    "hybrid_vndx",
)
"""Strategies that need only Kernel Tuner's own requirements, with their default settings. Left out are brute_force,
which reads the file in order; nsga2 and nsga3, which are multi-objective (nsga2 does not terminate with some seeds);
skopt and pyatf_strategies, which need further packages."""

_NO_LIMIT: Final = 2**40
"""Threads of a block: a landscape holds configs that were run, so that no limit applies."""


def is_installed() -> bool:
    return importlib.util.find_spec("kernel_tuner") is not None


class SimulatedSpace:
    """One family of a landscape as input of Kernel Tuner's simulation: a cache file and the space of its configs.

    Args:
        landscape: Landscape of one family.
    """

    def __init__(self, landscape: Landscape) -> None:
        (family,) = landscape.families
        self.names = [tunable.name for tunable in family.space.tunables]
        self._document = cache_document(landscape, family)
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-tuner-")
        self._cache = Path(self._folder.name) / "cache.json"
        self._cache.write_text(json.dumps(self._document, indent=0))
        self._ordered = cache(self._in_order)

    def run(self, strategy: str, seed: int, budget: int, order: str) -> list[tuple[Any, ...]]:
        """Returns the values of the distinct configs that a strategy evaluates, in order.

        The recorded configs are the whole search space. Kernel Tuner accepts a list of configs only as ``from_cache``.

        Args:
            strategy: Name of the strategy.
            seed: Seed of all its randomness.
            budget: Evaluations; Kernel Tuner is told this number.
            order: ``own``, or any other text for a shuffled order that follows from the text.
        """
        import kernel_tuner.interface as interface
        from kernel_tuner.searchspace import Searchspace

        document = self._ordered(order)

        def recorded(_tune_params: object, _restrictions: object, _max_threads: object, **_options: object) -> Any:
            space = Searchspace(None, None, None, from_cache=document)
            vars(space)["_modified_restrictions"] = [self._is_recorded]
            return space

        # some strategies write files to the working directory
        with (
            patch.object(interface, "Searchspace", recorded),
            _seeded(seed),
            _quiet(),
            contextlib.chdir(self._folder.name),
        ):
            results, _ = interface.tune_kernel(
                kernel_name=document["kernel_name"],
                kernel_source="",
                problem_size=tuple(document["problem_size"]),
                arguments=[],
                tune_params=document["tune_params"],
                lang="CUDA",
                strategy=strategy,
                strategy_options={"max_fevals": min(budget, len(document["cache"]))},
                cache=str(self._cache),
                simulation_mode=True,
                verbose=False,
                quiet=True,
            )
        evaluated = [tuple(result[name] for name in self.names) for result in results if result]
        return [values for values in dict.fromkeys(evaluated) if _key(values) in self._document["cache"]]

    def prepare(self, order: str) -> None:
        """Builds the space in an order, so that a run does not have to."""
        self._ordered(order)

    def close(self) -> None:
        self._folder.cleanup()

    def _in_order(self, order: str) -> dict[str, Any]:
        """Returns the content of the cache file with its configs in an order."""
        from kernel_tuner.searchspace import Searchspace

        known = self._document["cache"]
        with _quiet():
            space = Searchspace(self._document["tune_params"], [self._is_recorded], _NO_LIMIT)
        keys = [_key(values) for values in space.list]
        assert set(keys) == set(known), "the restriction admits exactly the recorded configs"
        if order != "own":
            random.Random(order).shuffle(keys)
        return {**self._document, "cache": {key: known[key] for key in keys}}

    def _is_recorded(self, params: Mapping[str, Any]) -> bool:
        return _key(tuple(params[name] for name in self.names)) in self._document["cache"]


def _key(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds everything that Kernel Tuner draws from."""
    import kernel_tuner.strategies.bayes_opt as bayes_opt
    import scipy.stats.qmc as qmc

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - Kernel Tuner draws from the global generator
    hypercube = partial(qmc.LatinHypercube, rng=np.random.default_rng(seed))
    with patch.object(qmc, "LatinHypercube", hypercube), patch.object(bayes_opt, "LatinHypercube", hypercube):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
