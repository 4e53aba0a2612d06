"""``--device replay:FILE``: the landscape to search, and the noise to add to its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from evoengine.documents.plain_numbers import parse_number
from evoengine.engine.families import AUTO, Families, Family
from evoengine.errors import LandscapeError, ProblemError, UsageError
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.noise import MOST, Noise
from evoengine.leaderboard.records import REPLAY_PRIORS
from evoengine.model import DeviceInfo, Problem
from evoengine.search.replay import replay_info

PREFIX: Final = "replay:"
_MAX_DIGITS: Final = 18
"""Digits of a seed that fits 64 bits."""


@dataclass(frozen=True)
class Replay:
    """A landscape to search and the noise to add."""

    file: str
    landscape: Landscape
    noise: Noise

    def device_with(self, priors: Sequence[str]) -> DeviceInfo:
        """Returns the device to store with each row.

        Searches with prior knowledge have a device of their own, so that they are ranked apart from searches without,
        and neither continues the other.

        Args:
            priors: Names of the priors in force.
        """
        info = replay_info(self.landscape, self.noise)
        return replace(info, name=f"{info.name}{REPLAY_PRIORS}{', '.join(priors)}") if priors else info

    def problem(self, wanted: Problem, default: Problem) -> Problem:
        """Returns the landscape's problem.

        Args:
            wanted: Problem that the user named.
            default: Value of `wanted` when the user named none.

        Raises:
            ProblemError: The user named another problem.
            LandscapeError: The landscape is of a foreign kernel and has no problem.
        """
        problem = self.landscape.problem
        if problem is None:
            raise LandscapeError(
                self.file, "problem", "is a foreign kernel's: scripts/measure/strategy_benchmark.py can use it"
            )
        if wanted not in (problem, default):
            raise ProblemError(f"{self.file} is of problem {problem.key}, not of {wanted.key}: leave --problem out")
        return problem

    def families(self, wanted: str) -> Families:
        """Returns the recorded families that ``--family`` names.

        Raises:
            UsageError: One of them is not in the file.
        """
        recorded = {family.name: family for family in self.landscape.families}
        names = set(recorded) if wanted == AUTO else {name.strip() for name in wanted.split(",")}
        for name in sorted(names - recorded.keys()):
            raise UsageError(f"{self.file} has no family '{name}', only {', '.join(recorded)}")
        spaces = self.landscape.spaces
        return Families(
            tuple(Family(recorded[name].space, recorded[name].template_hash, spaces.of(name)) for name in sorted(names))
        )


def open_replay(text: str) -> Replay:
    """Reads ``FILE`` or ``FILE?noise=0.01&drift=0.02&seed=1``: relative noise of each time, amplitude of a slow drift.

    Raises:
        UsageError: An option is unknown, given twice or out of range, or noise is requested for predictions.
        LandscapeError: The file is malformed.
    """
    file, _, options = text.partition("?")
    noise = _noise(options)
    landscape = read_landscape(file)
    if landscape.device.predicted and not noise.quiet:
        raise UsageError(f"{file} holds predictions, which do not scatter: noise goes with measured landscapes only")
    return Replay(file, landscape, noise)


def _noise(options: str) -> Noise:
    noise, given = Noise(), set[str]()
    for option in filter(None, options.split("&")):
        name, _, text = option.partition("=")
        if name in given:
            raise UsageError(f"replay option '{name}' is given twice: give it once")
        given.add(name)
        match name:
            case "noise":
                noise = replace(noise, sigma=_share(name, text))
            case "drift":
                noise = replace(noise, drift=_share(name, text))
            case "seed" if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
                noise = replace(noise, seed=int(text))
            case "seed":
                raise UsageError(f"replay option seed={text}: give a whole number")
            case _:
                raise UsageError(
                    f"unknown replay option '{name}': choose some of noise, drift and seed, as in noise=0.01"
                )
    return noise


def _share(name: str, text: str) -> float:
    try:
        share = parse_number(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= MOST:
        raise UsageError(f"replay option {name}={text}: give a share from 0 to {MOST}, such as 0.01")
    return share
