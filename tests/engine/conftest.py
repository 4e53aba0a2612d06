"""Fixtures of the command line, for tests of the engine that call it."""

from tests.cli.conftest import cache, evo, evo_in, quick_evo

__all__ = ["cache", "evo", "evo_in", "quick_evo"]
