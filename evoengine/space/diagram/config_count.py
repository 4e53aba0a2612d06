"""Number of configs, counted exactly or estimated with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_LARGE: Final = 10**6
"""Estimates from this value on are shown with two digits."""
_Z95: Final = 1.96
"""Half width of a 95 % confidence interval of a normal variable, in standard deviations."""


@dataclass(frozen=True)
class Count:
    """Number of configs."""

    value: int
    """Exact number, or the best estimate."""
    error: int | None = None
    """Half width of the 95 % confidence interval of an estimate; None for an exact number."""

    @property
    def exact(self) -> bool:
        return self.error is None

    @property
    def relative_error(self) -> float:
        """Error relative to the value; 0 if exact."""
        return (self.error or 0) / max(self.value, 1)

    def of(self, noun: str) -> str:
        """Formats the number with a noun: ``1,234 valid configs``, or ``about 3.1e9 valid configs (±2 %)``."""
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
        """Estimates how many of ``total`` configs qualify from ``hits`` among ``drawn`` uniform random ones.

        The interval is that of Agresti and Coull (1998), which stays meaningful if all or none qualified.
        """
        share = (hits + 2) / (drawn + 4)
        half_width = _Z95 * math.sqrt(share * (1 - share) / (drawn + 4))
        return cls(round(total * hits / drawn), math.ceil(total * half_width))

    @classmethod
    def sum(cls, counts: Iterable[Count]) -> Count:
        """Adds numbers; errors are independent, so their squares add."""
        parts = tuple(counts)
        value = sum(part.value for part in parts)
        if all(part.exact for part in parts):
            return cls(value)
        return cls(value, math.ceil(math.hypot(*(part.error or 0 for part in parts))))
