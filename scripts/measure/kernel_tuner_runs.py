"""Runs of Kernel Tuner's strategies on a landscape, in its own simulation mode; for ``strategy_benchmark.py``.

Kernel Tuner (1.5.0) is not a dependency; install it with ``python -m pip install kernel_tuner==1.5.0``.
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

SLOW: Final = ("basinhopping", "hybrid_vndx")
"""Strategies that compute for tens of milliseconds per evaluation: 50 runs of 500 take half an hour."""


def is_installed() -> bool:
    return importlib.util.find_spec("kernel_tuner") is not None


class SimulatedSpace:
    """One family of a landscape as input of Kernel Tuner's simulation: a cache file and the space of its configs."""

    def __init__(self, landscape: Landscape) -> None:
        (family,) = landscape.families
        self.names = [tunable.name for tunable in family.space.tunables]
        self._document = cache_document(landscape, family)
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-tuner-")
        self._cache = Path(self._folder.name) / "cache.json"
        self._cache.write_text(json.dumps(self._document, indent=0))

    def run(self, strategy: str, seed: int, budget: int) -> list[tuple[Any, ...]]:
        """Values of the distinct configs that a strategy evaluates, in order.

        The recorded configs are the whole search space. Kernel Tuner accepts a list of configs only as ``from_cache``.
        """
        import kernel_tuner.interface as interface
        from kernel_tuner.searchspace import Searchspace

        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - Kernel Tuner draws from the global generator
        known = self._document["cache"]

        def recorded(_tune_params: object, _restrictions: object, _max_threads: object, **_options: object) -> Any:
            space = Searchspace(None, None, None, from_cache=self._document)
            vars(space)["_modified_restrictions"] = [self._is_recorded]
            return space

        # some strategies write files to the working directory
        with patch.object(interface, "Searchspace", recorded), _quiet(), contextlib.chdir(self._folder.name):
            results, _ = interface.tune_kernel(
                kernel_name=self._document["kernel_name"],
                kernel_source="",
                problem_size=tuple(self._document["problem_size"]),
                arguments=[],
                tune_params=self._document["tune_params"],
                lang="CUDA",
                strategy=strategy,
                strategy_options={"max_fevals": min(budget, len(known))},
                cache=str(self._cache),
                simulation_mode=True,
                verbose=False,
                quiet=True,
            )
        evaluated = [tuple(result[name] for name in self.names) for result in results if result]
        return [values for values in dict.fromkeys(evaluated) if self._key(values) in known]

    def close(self) -> None:
        self._folder.cleanup()

    def _key(self, values: tuple[Any, ...]) -> str:
        return ",".join(map(str, values))

    def _is_recorded(self, params: Mapping[str, Any]) -> bool:
        return self._key(tuple(params[name] for name in self.names)) in self._document["cache"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
