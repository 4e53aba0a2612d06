"""Kinds of tunables: ordinal, categorical and boolean parameters with finite value sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from evoengine.errors import UsageError
from evoengine.model import Value

STEP_PROBABILITY: Final = 0.7
"""Probability that an ordinal tunable moves by one step instead of jumping."""


@dataclass(frozen=True)
class Tunable(ABC):
    """Named parameter with a finite set of values."""

    kind: ClassVar[str]
    name: str
    values: tuple[Value, ...]
    unit: str
    doc: str
    when: str = field(default="", repr=False)
    """Condition under which the tunable has an effect; empty for always. It is enforced by an implied constraint."""

    def encode(self, value: Value) -> int:
        """Returns the index of a value.

        Raises:
            UsageError: The tunable does not have this value.
        """
        for index, own in enumerate(self.values):
            if own == value and type(own) is type(value):
                return index
        choices = ", ".join(str(own) for own in self.values)
        raise UsageError(f"{self.name} cannot be {value!r}: choose one of {choices}")

    def decode(self, index: int) -> Value:
        return self.values[index]

    def holds(self, value: Value) -> bool:
        """Returns whether ``value`` is one of the values (``True`` is not 1)."""
        return any(own == value and type(own) is type(value) for own in self.values)

    def restricted(self, values: Sequence[Value]) -> Tunable:
        """Returns the same tunable with a subset of its values, in its own order.

        Raises:
            UsageError: A value is not one of its own, or ``values`` is empty.
        """
        if not values:
            raise UsageError(f"{self.name} needs at least one value")
        indices = sorted({self.encode(value) for value in values})
        return replace(self, values=tuple(self.values[index] for index in indices))

    def sample(self, rng: np.random.Generator) -> Value:
        """Returns a uniformly drawn value."""
        return self.values[int(rng.integers(len(self.values)))]

    def mutated(self, value: Value, rng: np.random.Generator) -> Value:
        """Returns any other value, or the same one if there is no other."""
        others = [own for own in self.values if own != value]
        return others[int(rng.integers(len(others)))] if others else value

    @abstractmethod
    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """Returns the values one step away."""

    @abstractmethod
    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """Returns the steps from ``value``, which may be unknown to the tunable, to each of the values."""


@dataclass(frozen=True)
class Ordinal(Tunable):
    """Ordered integers; one step leads to the next smaller or larger value."""

    kind: ClassVar[str] = "ordinal"

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """Returns the next smaller and the next larger value."""
        index = self.encode(value)
        return self.values[max(index - 1, 0) : index] + self.values[index + 1 : index + 2]

    def mutated(self, value: Value, rng: np.random.Generator) -> Value:
        """Returns the next smaller or larger value most of the time, and otherwise any other value."""
        near = self.neighbours(value)
        if near and rng.random() < STEP_PROBABILITY:
            return near[int(rng.integers(len(near)))]
        return super().mutated(value, rng)

    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """Returns differences of value indices; an unknown integer counts as the nearest value."""
        count = len(self.values)
        if isinstance(value, str):
            return np.ones(count, np.uint16)
        nearest = min(range(count), key=lambda index: abs(int(self.values[index]) - int(value)))
        return np.abs(np.arange(count) - nearest).astype(np.uint16)


@dataclass(frozen=True)
class Categorical(Tunable):
    """Unordered names; every other value is one step away."""

    kind: ClassVar[str] = "categorical"

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """Returns all other values."""
        index = self.encode(value)
        return self.values[:index] + self.values[index + 1 :]

    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """Returns 0 for the same value and 1 for all others."""
        same = [own == value and type(own) is type(value) for own in self.values]
        return (~np.array(same)).astype(np.uint16)


@dataclass(frozen=True)
class Boolean(Categorical):
    """Switch with the values False and True."""

    kind: ClassVar[str] = "boolean"
