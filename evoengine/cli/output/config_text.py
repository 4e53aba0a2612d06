"""Configs on a line: in full, as differences from a start, and as the tunables in which some rows differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from evoengine.engine.rows.space import StartingConfig
from evoengine.leaderboard.records import Row
from evoengine.model import Value


def config_text(config: Iterable[tuple[str, object]]) -> str:
    """A config on one line."""
    return " ".join(f"{name}={value}" for name, value in config)


def config_from_start(family: str, config: Mapping[str, Value], start: StartingConfig | None) -> str:
    """A config as its differences from the family's starting config, in full if that is unknown."""
    if start is None:
        return f"{family}: {config_text(config.items())}"
    other = config_text((name, value) for name, value in config.items() if start.values.get(name) != value)
    return f"{family} as {start.name}, but {other}" if other else f"{family} as {start.name}"


class SharedTunables:
    """The tunables on which all rows of a family agree, so that a list of rows need not repeat them.

    Args:
        rows: Rows of the list.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._counts = Counter(row.family for row in rows)
        self._shared: dict[str, dict[str, Value]] = {}
        for row in rows:
            known = self._shared.setdefault(row.family, dict(row.config))
            for name in [name for name, value in known.items() if row.config.get(name) != value]:
                del known[name]

    def differing(self, row: Row) -> str:
        """The tunables of a row on which the rows of its family differ; a dash if there are none."""
        shared = self._shared[row.family]
        return config_text((name, value) for name, value in row.config.items() if name not in shared) or "-"

    def lines(self) -> Iterator[str]:
        """One line per family with the tunables that all its rows share."""
        for family, shared in self._shared.items():
            if shared:
                which = "all rows" if self._counts[family] > 1 else "the only row"
                yield f"{which} of {family}: {config_text(shared.items())}"
