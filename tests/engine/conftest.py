"""Fixtures shared with the tests of the command line."""

from tests.cli.conftest import cache, evo

__all__ = ["cache", "evo"]
