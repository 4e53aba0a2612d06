"""``dashboard``: Optuna's own dashboard on the leaderboard's file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from evoengine.cli.output.echo import echo
from evoengine.cli.output.verbosity import say
from evoengine.engine.options.verbs import DashboardOptions
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.store import Leaderboard

_HOST: Final = "127.0.0.1"
"""The dashboard has no password and can rename and delete studies, so it is served to this machine only."""
_NAMES: Final = frozenset((_HOST, "localhost"))
_HTTP_PORT: Final = 80


class _Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        pass


class LocalOnly:
    """WSGI application that serves requests of this machine's own pages only.

    A page of another origin could otherwise send requests to the dashboard, or rebind its own name to 127.0.0.1 and
    read the answers. So ``Host`` must name this server, and so must ``Origin`` or, without it, ``Referer`` if present.

    Args:
        application: Application to serve.
        port: Port of the server.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]], port: int = 0) -> None:
        self._application = application
        self.port = port

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers one request; one that is not allowed gets status 403."""
        reason = self._objection(environ)
        if not reason:
            return self._application(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{reason}: open the dashboard at http://{_HOST}:{self.port}/\n".encode()]

    def _objection(self, environ: dict[str, Any]) -> str:
        hosts = {f"{name}:{self.port}" for name in _NAMES} | (_NAMES if self.port == _HTTP_PORT else set())
        if environ.get("HTTP_HOST", "").lower() not in hosts:
            return "the request is for another host"
        origin = environ.get("HTTP_ORIGIN")
        if origin is None and (referer := environ.get("HTTP_REFERER")):
            origin = "/".join(referer.split("/")[:3])
        reads = environ.get("REQUEST_METHOD") in ("GET", "HEAD")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}:
            is_link = reads and "HTTP_ORIGIN" not in environ  # a link on another page may lead here
            return "" if is_link else "the request comes from another origin"
        if not reads and environ.get("HTTP_SEC_FETCH_SITE", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another origin"
        return ""


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
            raise UsageError(f"{board.name}: holds no study yet: run a search first")
        from evoengine.search.trial_log import optuna_studies

        storage = optuna_studies(board)
    from optuna_dashboard import wsgi

    guarded = LocalOnly(wsgi(storage))
    try:
        server = make_server(_HOST, port, guarded, handler_class=_Quiet)
    except OSError as error:
        raise UsageError(f"port {port}: {error.strerror}: give another with --port, or 0 for a free one") from error
    guarded.port = server.server_port
    with server:
        # A thread serves, so that Ctrl-C reaches this one; inside a request handler it would be swallowed.
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        echo(f"http://{_HOST}:{server.server_port}/  shows the studies of {database_name(db)}; Ctrl-C stops it")
        try:
            serving.join()
        except KeyboardInterrupt:
            server.shutdown()
            say("stopped")
