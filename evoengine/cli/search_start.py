"""The way into ``search``, kept apart from the verb itself, whose imports take longer than what is begun here."""

from __future__ import annotations

from evoengine.cli.early import early_imports
from evoengine.cli.request import SearchRequest
from evoengine.cli.voice import Voice


def search_at_once(request: SearchRequest, voice: Voice) -> int:
    """Runs a search whose workers import while this process itself still does.

    Returns:
        The exit code.

    Raises:
        EvoEngineError: it could not run, or found nothing.
    """
    with early_imports(request.device) as imports:
        from evoengine.cli.search_verb import run_search  # lazily: it is most of what there is to import

        return run_search(request, voice, imports)
