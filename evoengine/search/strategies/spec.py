"""The declaration of a built-in strategy, and parsing of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_type_hints

from evoengine.documents.plain_numbers import parse_number, parse_whole
from evoengine.errors import UsageError
from evoengine.search.strategies.sampler import Sampler
from evoengine.space.family_spaces import FamilySpaces

OptionsT = TypeVar("OptionsT")
_PARSERS: Final[Mapping[type, Callable[[str], Any]]] = {int: parse_whole, float: parse_number, str: str}


@dataclass(frozen=True)
class NoOptions:
    """Options of a strategy without any."""


@dataclass(frozen=True)
class StrategySpec(Generic[OptionsT]):
    """A strategy, as its module declares it under the name ``STRATEGY``."""

    summary: str
    """Description in a few words."""
    options: type[OptionsT]
    """Frozen dataclass of its options, all int, float or str with defaults."""
    make: Callable[[FamilySpaces, OptionsT], Sampler]
    """Makes its sampler for the valid configs of a study."""


def require(condition: bool, rule: str) -> None:
    """Checks one option of a strategy.

    Args:
        condition: Whether the value is allowed.
        rule: Option and requirement, such as "elites must be at least 1".

    Raises:
        UsageError: The value is not allowed.
    """
    if not condition:
        raise UsageError(rule)


def parse_options(options: type[OptionsT], texts: Mapping[str, str], strategy: str) -> OptionsT:
    """Builds a strategy's options from texts.

    Args:
        options: Dataclass of the options.
        texts: Values by name, as given on the command line.
        strategy: Name of the strategy, for messages.

    Raises:
        UsageError: An option is unknown, or its value is not allowed.
    """
    kinds: Mapping[str, Any] = get_type_hints(options)
    values = {}
    for name, text in texts.items():
        if name not in kinds:
            known = ", ".join(_option_texts(options)) or "none"
            raise UsageError(f"strategy '{strategy}': unknown option '{name}'; its options are: {known}")
        try:
            values[name] = _PARSERS[kinds[name]](text)
        except ValueError as error:
            kind = kinds[name].__name__
            raise UsageError(f"strategy '{strategy}': option {name}={text} is not of type {kind}") from error
    try:
        return options(**values)
    except UsageError as error:
        raise UsageError(f"strategy '{strategy}': {error}") from error


def _option_texts(options: type[Any]) -> list[str]:
    """The options of a strategy with their defaults, such as ``elites=5``."""
    return [f"{field.name}={field.default}" for field in dataclasses.fields(options)]
