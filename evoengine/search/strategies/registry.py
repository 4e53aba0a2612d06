"""Strategies by name, and samplers by the path of their class.

A built-in strategy is one module of :mod:`evoengine.search.strategies.builtin`: adding a file there registers it. Any
other sampler is named ``package.module:Class``: a subclass of Optuna's ``BaseSampler``, or a class with the method of
:class:`~evoengine.search.strategies.sampler.Sampler`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.errors import EvoEngineError, UsageError
from evoengine.model import Config
from evoengine.search.forecast.choice import ForecastChoice
from evoengine.search.strategies import builtin
from evoengine.search.strategies.forecast_sampler import ForecastSampler
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.sampler import Offspring, Pruner, Sampler, View
from evoengine.search.strategies.spec import StrategySpec, parse_options
from evoengine.search.strategies.strategy import Strategy, TrialLog
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace

DEFAULT: Final = "evolution"
STRATEGIES: Final = tuple(
    sorted((module.name for module in pkgutil.iter_modules(builtin.__path__)), key=lambda name: (name != DEFAULT, name))
)
"""Names of the built-in strategies, the default first."""


def make_strategy(
    text: str,
    space: ValidSpace | FamilySpaces,
    seed: int,
    log: TrialLog | None = None,
    history: Sequence[Outcome] = (),
    pruner: Pruner | None = None,
    forecast: Future[ForecastChoice] | None = None,
    *,
    in_order: bool = True,
) -> Strategy:
    """Makes a strategy.

    Args:
        text: Name of a built-in strategy, optionally with options (``evolution:elites=8,warm_up=10``), or the path of a
            sampler's class (``package.module:Class``).
        space: Valid configs of one family or of several.
        seed: Random seed, 0 or more.
        log: Storage of its trials for other tools; None for none.
        history: Outcomes of the study so far.
        pruner: Pruner that rejects configs that are not worth a measurement; None for none.
        forecast: Choice by forecast, which may still be computed: every other config after the opening is one of its
            candidates for a while. None for none.
        in_order: Whether proposals depend on outcomes in the order of their trials, not in that of their arrival.

    Raises:
        UsageError: There is no such strategy, or it cannot be made.
    """
    spaces = FamilySpaces.around(space)
    sampler = _sampler(text, spaces, seed)
    if forecast is not None:
        sampler = ForecastSampler(sampler, forecast)
    return Strategy(spaces, sampler, seed, log, history, pruner, in_order=in_order)


def check_strategy(text: str) -> None:
    """Checks that a strategy exists and that its options are valid, without making it.

    Raises:
        UsageError: There is no such strategy, or an option is not valid.
    """
    if _is_class_path(text):
        _load_class(text)
    else:
        _parse(text)


def _load_spec(name: str) -> StrategySpec[Any]:
    """Loads what a built-in strategy's module declares.

    Raises:
        UsageError: There is no such strategy.
    """
    if name not in STRATEGIES:
        raise UsageError(
            f"unknown strategy '{name}': choose one of {', '.join(STRATEGIES)}, or give the path of a sampler's class, "
            "package.module:Class"
        )
    spec: StrategySpec[Any] = importlib.import_module(f"{builtin.__name__}.{name}").STRATEGY
    return spec


def _sampler(text: str, spaces: FamilySpaces, seed: int) -> Sampler:
    if not _is_class_path(text):
        spec, options = _parse(text)
        return spec.make(spaces, options)
    cls = _load_class(text)
    try:
        if not _is_optuna_sampler(cls):
            return _CheckedSampler(text, spaces, cls(spaces))
        from evoengine.search.strategies.optuna_adapter import OptunaSampler

        return _CheckedSampler(text, spaces, OptunaSampler(spaces, partial(_seeded, cls), seed))
    except EvoEngineError:
        raise
    except Exception as error:  # a missing argument, above all; a user's class may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"strategy '{text}': {cls.__name__} cannot be made: {reason}") from error


def _parse(text: str) -> tuple[StrategySpec[Any], Any]:
    """Splits ``name:option=value,option=value``."""
    name, _, rest = text.partition(":")
    spec = _load_spec(name)
    texts: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        option, separator, value = part.partition("=")
        if not separator:
            raise UsageError(f"strategy '{name}': option '{part}' has no value; write {name}:OPTION=VALUE,OPTION=VALUE")
        if option.strip() in texts:
            raise UsageError(f"strategy '{name}': option '{option.strip()}' is given twice: give it once")
        texts[option.strip()] = value.strip()
    return spec, parse_options(spec.options, texts, name)


def _is_class_path(text: str) -> bool:
    module, _, name = text.partition(":")
    return module not in STRATEGIES and bool(name) and "=" not in name


def _load_class(text: str) -> type[Any]:
    """Imports a sampler's class; modules in the working directory are found, too.

    Raises:
        UsageError: It cannot be imported, or is no sampler.
    """
    module_name, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # at the end, so that nothing there hides an installed package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"strategy '{text}': module '{module_name}' cannot be imported: {reason}") from error
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"strategy '{text}': module '{module_name}' has no '{name}'")
    if not isinstance(found, type):
        raise UsageError(f"strategy '{text}': '{name}' is not a class")
    if not (_is_optuna_sampler(found) or callable(getattr(found, "propose", None))):
        raise UsageError(
            f"strategy '{text}': '{name}' is no sampler: it needs optuna.samplers.BaseSampler as a base class, or a "
            "method propose(view, rng)"
        )
    return found


def _is_optuna_sampler(cls: type[Any]) -> bool:
    from optuna.samplers import BaseSampler

    return issubclass(cls, BaseSampler)


def _seeded(cls: type[Any], seed: int) -> Any:
    """Makes an Optuna sampler; a class without a seed must be deterministic for a search to be repeatable."""
    wanted = {"seed": seed, "warn_independent_sampling": False}  # the warning is printed per parameter and trial
    accepted = inspect.signature(cls).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about experimental classes
        return cls(**{name: value for name, value in wanted.items() if name in accepted})


@dataclass(frozen=True)
class _CheckedSampler:
    """A user's sampler. Its errors and invalid proposals are reported as such, not as internal errors."""

    text: str
    spaces: FamilySpaces
    sampler: Sampler

    def propose(self, view: View, rng: np.random.Generator) -> Config | Offspring:
        """Returns the sampler's proposal, checked.

        Raises:
            UsageError: The sampler failed, or its proposal is not an unseen valid config.
        """
        try:
            made = self.sampler.propose(view, rng)
        except EvoEngineError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(f"strategy '{self.text}': trial {view.number}: propose failed: {reason}") from error
        config = made.config if isinstance(made, Offspring) else made
        if not isinstance(config, Config) or not self.spaces.contains(config) or config in view.seen:
            raise UsageError(f"strategy '{self.text}': trial {view.number}: {config!s} is not an unseen valid config")
        return made
