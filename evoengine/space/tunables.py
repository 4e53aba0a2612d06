"""The kinds of tunables. Each samples, steps, mutates and encodes itself as an index into its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from evoengine.errors import UsageError
from evoengine.model import Value

JUMP_PROBABILITY: Final = 0.2
"""How often the mutation of an ordinal tunable jumps anywhere instead of taking one step."""


@dataclass(frozen=True)
class Tunable(ABC):
    """One named parameter and the finite set of values that it can hold."""

    kind: ClassVar[str]
    name: str
    values: tuple[Value, ...]
    unit: str
    doc: str
    when: str = field(default="", repr=False)
    """Condition without which it has no effect; empty for none. What counts is the constraint that it becomes."""

    def encode(self, value: Value) -> int:
        """Index of a value.

        Raises:
            UsageError: the tunable cannot hold it.
        """
        for index, own in enumerate(self.values):
            if own == value and type(own) is type(value):
                return index
        choices = ", ".join(str(own) for own in self.values)
        raise UsageError(f"{self.name} cannot be {value!r}: choose one of {choices}")

    def decode(self, index: int) -> Value:
        """Value at an index."""
        return self.values[index]

    def holds(self, value: Value) -> bool:
        """Whether ``value`` is one of the values (``True`` is not 1)."""
        return any(own == value and type(own) is type(value) for own in self.values)

    def restricted(self, values: Sequence[Value]) -> Tunable:
        """The same tunable with only some of its values, in its own order.

        Raises:
            UsageError: a value is not one of its own, or there is none.
        """
        if not values:
            raise UsageError(f"{self.name} needs at least one value")
        indices = sorted({self.encode(value) for value in values})
        return replace(self, values=tuple(self.values[index] for index in indices))

    def sample(self, rng: np.random.Generator) -> Value:
        """Any value, all equally likely."""
        return self.values[int(rng.integers(len(self.values)))]

    @abstractmethod
    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """The values one step away."""

    @abstractmethod
    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        """Another value where there is one, else the same."""

    @abstractmethod
    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """Steps from ``value``, which need not be one of the values, to each of the values."""

    def _other(self, value: Value, rng: np.random.Generator) -> Value:
        others = [own for own in self.values if own != value]
        return others[int(rng.integers(len(others)))] if others else value


@dataclass(frozen=True)
class Ordinal(Tunable):
    """Ordered integers: a step leads to the next smaller or larger one."""

    kind: ClassVar[str] = "ordinal"

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """The next smaller and the next larger value."""
        index = self.encode(value)
        return self.values[max(index - 1, 0) : index] + self.values[index + 1 : index + 2]

    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        """Mostly one step, sometimes a jump to any other value."""
        near = self.neighbours(value)
        if not near or rng.random() < JUMP_PROBABILITY:
            return self._other(value, rng)
        return near[int(rng.integers(len(near)))]

    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """Steps between places in the order; a foreign integer stands where its nearest value stands."""
        count = len(self.values)
        if isinstance(value, str):
            return np.ones(count, np.uint16)
        place = min(range(count), key=lambda index: abs(int(self.values[index]) - int(value)))
        return np.abs(np.arange(count) - place).astype(np.uint16)


@dataclass(frozen=True)
class Categorical(Tunable):
    """Unordered names: any other value is one step away."""

    kind: ClassVar[str] = "categorical"

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """All other values."""
        index = self.encode(value)
        return self.values[:index] + self.values[index + 1 :]

    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        """Any other value."""
        return self._other(value, rng)

    def distances(self, value: Value) -> npt.NDArray[np.uint16]:
        """0 for the same value, 1 for any other."""
        same = [own == value and type(own) is type(value) for own in self.values]
        return (~np.array(same)).astype(np.uint16)


@dataclass(frozen=True)
class Boolean(Categorical):
    """Off or on."""

    kind: ClassVar[str] = "boolean"
