"""``dashboard``: Optuna's own dashboard on the leaderboard's file."""

from __future__ import annotations

import importlib.util
import sys
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from evoengine.cli.options.verbosity import say
from evoengine.cli.output.echo import echo
from evoengine.engine.verb_options import DashboardOptions
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.store import Leaderboard

_HOST: Final = "127.0.0.1"
"""The dashboard has no password and can rename and delete studies, so it is served to this machine only."""


class _Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        pass


def run_dashboard(options: DashboardOptions) -> None:
    """Serves the dashboard until Ctrl-C.

    Raises:
        StoreError: There is no leaderboard.
        MissingDependencyError: Package optuna-dashboard is not installed.
        UsageError: The leaderboard holds no study, or the port is taken.
    """
    db, port = options.db, options.port
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise MissingDependencyError(
            f"the dashboard needs optuna-dashboard: {sys.executable} -m pip install 'optuna-dashboard>=0.21,<0.22' "
            "(the extra 'dashboard')"
        )
    with Leaderboard(database_url(db), create=False) as board:
        if not board.studies():
            raise UsageError(f"{board.path}: holds no study yet: run a search first")
        from evoengine.search.trial_log import optuna_studies

        storage = optuna_studies(board)
    from optuna_dashboard import wsgi

    try:
        server = make_server(_HOST, port, wsgi(storage), handler_class=_Quiet)
    except OSError as error:
        raise UsageError(f"port {port}: {error.strerror}: give another with --port, or 0 for a free one") from error
    with server:
        # A thread serves, so that Ctrl-C reaches this one; inside a request handler it would be swallowed.
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        echo(f"http://{_HOST}:{server.server_port}/  shows the studies of {db}; Ctrl-C stops it")
        try:
            serving.join()
        except KeyboardInterrupt:
            server.shutdown()
            say("stopped")
