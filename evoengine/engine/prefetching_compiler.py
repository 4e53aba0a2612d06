"""Compilations that begin before the search asks for them: the first proposals take a while, and cores would wait."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from evoengine.model import Config
from evoengine.search.candidate.evaluate import Compilation
from evoengine.search.candidate.services import CompileService


class PrefetchingCompiler:
    """A :class:`~evoengine.search.candidate.services.CompileService` that has begun with some configs already.

    Args:
        compiler: does the work.
        configs: what will be asked for in any case.
    """

    def __init__(self, compiler: CompileService, configs: Iterable[Config]) -> None:
        self._compiler = compiler
        self._begun = {config: compiler.submit(config) for config in configs}

    @property
    def workers(self) -> int:
        """Configs that it works on at the same time."""
        return self._compiler.workers

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each worker that does not come back."""
        return self._compiler.lost

    def submit(self, config: Config) -> Future[Compilation]:
        """Starts on a config, or hands out what was begun."""
        return self._begun.pop(config, None) or self._compiler.submit(config)
