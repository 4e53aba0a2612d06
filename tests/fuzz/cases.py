"""One bad input for the command line: the call, the files that it reads, and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PORT = "{port}"
"""Stands in the words of a call for a local port that is taken, so that no call starts a server."""


@dataclass(frozen=True)
class Case:
    """A call of the command line with something wrong in it."""

    name: str
    """Kind of mistake, for reports."""
    words: tuple[str, ...]
    """Arguments after the name of the program."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to write into the working folder first, beside the samples, by name."""
    environment: Mapping[str, str] = field(default_factory=dict)
