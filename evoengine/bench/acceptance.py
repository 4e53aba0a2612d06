"""The rule that replaces a champion: a challenger must be faster by the threshold, with confidence, on fresh pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.model import ACCEPT_THRESHOLD, Duel
from evoengine.statistics import paired_gain

MIN_PAIRS: Final = 5
"""Smallest number of pairs of a measured duel."""


def judge_duel(
    challenger_us: Sequence[float], champion_us: Sequence[float], threshold: float = ACCEPT_THRESHOLD
) -> Duel:
    """Judges fresh interleaved pairs.

    The challenger is accepted if its gain reaches the threshold and the one-sided 95 % bound of the gain is above zero.

    Args:
        challenger_us: Challenger's time in each pair.
        champion_us: Champion's time in each pair.
        threshold: Smallest relative gain that counts, 0.03 for 3 %.

    Raises:
        ValueError: The lengths differ, or there are fewer than :data:`MIN_PAIRS` pairs.
    """
    if len(challenger_us) < MIN_PAIRS:
        raise ValueError(f"a duel needs at least {MIN_PAIRS} pairs, not {len(challenger_us)}")
    gain, low_gain = paired_gain(challenger_us, champion_us)
    accepted = gain >= threshold and low_gain > 0
    return Duel(tuple(challenger_us), tuple(champion_us), gain, low_gain, threshold, accepted)


def judge_predictions(challenger_us: float, champion_us: float, threshold: float = ACCEPT_THRESHOLD) -> Duel:
    """Judges two predictions; they are deterministic, so one pair is enough. Equal predictions are no gain."""
    gain = 1 - challenger_us / champion_us
    return Duel((challenger_us,), (champion_us,), gain, gain, threshold, gain >= threshold and gain > 0)
