"""The way into ``search``, kept apart from the verb itself, whose imports take longer than what is begun here."""

from __future__ import annotations

from evoengine.cli.options.output_options import OutputOptions
from evoengine.engine.options import SearchOptions
from evoengine.engine.prefetch import early_imports


def search_at_once(request: SearchOptions, voice: OutputOptions) -> int:
    """Runs a search whose workers import while this process itself still does.

    Returns:
        The exit code.

    Raises:
        EvoEngineError: it could not run, or found nothing.
    """
    with early_imports(request.device) as imports:
        from evoengine.cli.verbs.search import run_search  # lazily: it is most of what there is to import

        return run_search(request, voice, imports)
