"""Where a candidate came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """How a strategy came to propose a config."""

    move: str
    """In the strategy's own words: ``start``, ``stranger``, ``crossover``, ``one change`` …"""
    parents: tuple[str, ...] = ()
    """:attr:`Config.key <evoengine.model.Config.key>` of each parent, all evaluated before in the same study; what it
    resembles most comes first."""
