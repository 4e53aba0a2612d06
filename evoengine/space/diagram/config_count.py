"""How many configs: a number that knows whether it was counted or estimated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_LARGE: Final = 10**6
"""Guesses from here on are told with two digits."""
_Z95: Final = 1.96
"""A normal variable is within so many standard deviations of its mean in 95 of 100 cases."""


@dataclass(frozen=True)
class Count:
    """A number of configs."""

    value: int
    """Exact, or the best guess."""
    error: int | None = None
    """Half width of the 95 % confidence interval of a guess; None when every config was counted."""

    @property
    def exact(self) -> bool:
        """Whether it was counted."""
        return self.error is None

    @property
    def relative_error(self) -> float:
        """Error as a share of the value; 0 when exact."""
        return (self.error or 0) / max(self.value, 1)

    def of(self, noun: str) -> str:
        """In words: ``1,234 valid configs``, or ``about 3.1e9 valid configs (±2 %)``."""
        return f"{self.value:,} {noun}" if self.exact else f"about {self._rounded} {noun} ({self._margin})"

    def __str__(self) -> str:
        return f"{self.value:,}" if self.exact else f"about {self._rounded} ({self._margin})"

    @property
    def _rounded(self) -> str:
        mantissa, exponent = f"{self.value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}" if self.value >= _LARGE else f"{self.value:,}"

    @property
    def _margin(self) -> str:
        if self.value == 0:
            return f"at most {self.error:,}"
        return f"±{math.ceil(100 * self.relative_error)} %"

    @classmethod
    def estimated(cls, total: int, hits: int, drawn: int) -> Count:
        """How many of ``total`` configs qualify, when ``hits`` of ``drawn`` uniform ones did.

        The interval is Agresti and Coull's, which says something sensible even when all or none qualified.
        """
        share = (hits + 2) / (drawn + 4)
        half_width = _Z95 * math.sqrt(share * (1 - share) / (drawn + 4))
        return cls(round(total * hits / drawn), math.ceil(total * half_width))

    @classmethod
    def sum(cls, counts: Iterable[Count]) -> Count:
        """All together; independent errors add up by their squares."""
        parts = tuple(counts)
        value = sum(part.value for part in parts)
        if all(part.exact for part in parts):
            return cls(value)
        return cls(value, math.ceil(math.hypot(*(part.error or 0 for part in parts))))
