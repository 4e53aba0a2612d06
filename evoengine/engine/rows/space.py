"""Search space of a stored row, and the config of its family with which the row is compared."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evoengine.errors import EvoEngineError, UsageError
from evoengine.model import Value
from evoengine.space.data_dirs import ENVIRONMENT
from evoengine.space.loader import family_names, family_space, find_space, load_space, parse_space
from evoengine.space.search_space import SearchSpace

if TYPE_CHECKING:
    from evoengine.leaderboard.records import Record


def space_of_row(record: Record, file: Path | None) -> SearchSpace:
    """The search space for rendering a row's config.

    Args:
        record: Row.
        file: Search-space file to use; None for the file of the study, or the family's own if it had none.

    Raises:
        UsageError: The file belongs to another family, or the row's family is not installed.
        SearchSpaceError: The file is malformed.
    """
    family = record.row.family
    if record.variant is not None:
        if file is not None:
            raise UsageError(f"row {record.row.id} is of a variant, which has its own search space: leave --space out")
        return find_space(family, (record.variant,))
    if file is None:
        own = dict(record.study.key.own_spaces).get(family)
        if own is not None:
            return parse_space(own, f"the search space of row {record.row.id}")
        if family not in family_names():
            given = os.environ.get(ENVIRONMENT)
            remedy = f"{ENVIRONMENT} is {given}, which lacks it: name" if given else f"set {ENVIRONMENT} to"
            raise UsageError(
                f"row {record.row.id} is of an unknown family '{family}': {remedy} the folder with its template and "
                "search space"
            )
        return family_space(family)
    space = load_space(file)
    if space.family != family:
        raise UsageError(
            f"{file} is a space of family {space.family}, and row {record.row.id} is of {family}: leave --space out"
        )
    return space


@dataclass(frozen=True)
class StartingConfig:
    """The config with which a family's others are compared: its first start, or the first value of each tunable."""

    name: str
    """Its name for messages."""
    values: dict[str, Value]


def starting_config(space: SearchSpace) -> StartingConfig:
    """Returns the starting config of a family, as its search-space file states it; it need not be valid everywhere."""
    values = {tunable.name: tunable.values[0] for tunable in space.tunables}
    if not space.starts:
        return StartingConfig("the first values", values)
    first = space.starts[0]
    return StartingConfig(f"its start {first.name}", values | dict(first.values))


def starting_config_of(record: Record) -> StartingConfig | None:
    """Returns the starting config of a row's family; None if its search space cannot be read here."""
    try:
        return starting_config(space_of_row(record, None))
    except EvoEngineError:
        return None
