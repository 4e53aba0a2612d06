"""Parts of a JSON document that are checked when they are used; every mistake is told as file, key, reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from evoengine.errors import LandscapeError
from evoengine.model import Value


class Checked:
    """One object of a document.

    Args:
        file: the document's name, for messages.
        key: where the object stands in it; empty for the whole.
        content: what stands there.

    Raises:
        LandscapeError: it is no object; every method raises the same where something is missing or wrong.
    """

    def __init__(self, file: str, key: str, content: object) -> None:
        self.file = file
        self.key = key
        if not isinstance(content, dict):
            raise LandscapeError(file, key, "is not an object")
        self.content: dict[str, Any] = content

    def error(self, name: str, reason: str) -> LandscapeError:
        """What is wrong with an entry."""
        return LandscapeError(self.file, f"{self.key}.{name}" if self.key else name, reason)

    def get(self, name: str) -> Any:
        """An entry of any kind, which must be there."""
        if name not in self.content:
            raise self.error(name, "is missing")
        return self.content[name]

    def text(self, name: str) -> str:
        """A text."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, f"is {value!r}, not a text")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number that is not below ``least``."""
        value = self.get(name)
        if not _is_whole(value) or value < least:
            raise self.error(name, f"is {value!r}, not a whole number of at least {least}")
        return int(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.error(name, f"is {value!r}, not true or false")
        return value

    def part(self, name: str) -> Checked:
        """An object within this one."""
        return Checked(self.file, f"{self.key}.{name}" if self.key else name, self.get(name))

    def parts(self, name: str) -> Iterator[Checked]:
        """A list of objects."""
        for place, content in enumerate(self.items(name)):
            yield Checked(self.file, f"{self.key}.{name}[{place}]" if self.key else f"{name}[{place}]", content)

    def items(self, name: str, count: int | None = None) -> list[Any]:
        """A list, of so many entries if their number is given."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, "is not a list")
        if count is not None and len(value) != count:
            raise self.error(name, f"has {len(value)} entries, not {count}")
        return value

    def wholes(self, name: str, count: int, least: int, below: int | None = None) -> Sequence[int]:
        """A list of whole numbers from ``least`` on and below ``below``."""
        values = self.items(name, count)
        for place, value in enumerate(values):
            if not _is_whole(value) or value < least or (below is not None and value >= below):
                limits = f"from {least} on" if below is None else f"from {least} to {below - 1}"
                raise self.error(f"{name}[{place}]", f"is {value!r}, not a whole number {limits}")
        return values

    def numbers(self, name: str, count: int) -> Sequence[float | None]:
        """A list of finite numbers that are not negative, or null."""
        values = self.items(name, count)
        for place, value in enumerate(values):
            if value is not None and not _is_amount(value):
                raise self.error(f"{name}[{place}]", f"is {value!r}, not a number of at least 0")
        return values

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        values = self.items(name)
        for place, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{name}[{place}]", f"is {value!r}, not a text")
        return values

    def values(self, name: str) -> tuple[Value, ...]:
        """A list of what tunables can hold, each once."""
        values = self.items(name)
        for place, value in enumerate(values):
            if not isinstance(value, (int, str)):
                raise self.error(f"{name}[{place}]", f"is {value!r}, not a whole number, a text, true or false")
            if any(other == value for other in values[:place]):
                raise self.error(f"{name}[{place}]", f"is {value!r} once more")
        return tuple(values)


def _is_amount(value: object) -> bool:
    """Whether a value is a finite number that is not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
