"""Process that imports what most calls need, then forks a process for each call; :mod:`tests.warm` is the client.

A forked process differs from a fresh one only in the modules that are loaded: arguments, environment, folder, streams,
``__main__`` and the end of the interpreter are those of ``python -m MODULE`` or ``python FILE``.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

HEADER: Final = struct.Struct("<I")
"""Length of a request, before its JSON."""
RESULT: Final = struct.Struct("<i")
"""First the process id, then the exit status in the form of ``os.waitpid``."""
PRELOADED: Final = ("torch", "optuna", "sqlalchemy.dialects.sqlite", "evoengine.search.candidate.setup")
"""Slow imports that verbs make late. They start no thread, so that processes can be forked after them."""


@dataclass(frozen=True)
class Request:
    """One call."""

    program: str
    """Module, or path of a script that ends with ``.py``."""
    words: list[str]
    folder: str
    environment: dict[str, str]


def serve(control: socket.socket) -> Request:
    """Forks a process for each request; returns only in these processes. The server ends when its client has."""
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                pid, answers = key.data
                waiting.unregister(key.fd)
                os.close(key.fd)
                with answers:
                    answers.sendall(RESULT.pack(os.waitpid(pid, 0)[1]))
                continue
            received = _receive(control)
            if received is None:
                os._exit(0)
            request, (*streams, back) = received
            pid = os.fork()
            if pid == 0:
                waiting.close()
                control.close()
                os.close(back)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                return request
            for stream in streams:
                os.close(stream)
            answers = socket.socket(fileno=back)
            answers.sendall(RESULT.pack(pid))
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))


def _receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """Receives a request, its three streams and the socket for the answers; None at the end."""
    head, descriptors, _, _ = socket.recv_fds(control, HEADER.size, 4)
    if not head:
        return None
    with control.makefile("rb") as file:
        body = file.read(HEADER.unpack(head)[0])
    return Request(**json.loads(body)), descriptors


def run(request: Request) -> None:
    """Runs a call as the main program of this process."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None
    signal.set_wakeup_fd(-1)
    sys.argv = [request.program, *request.words]
    if request.program.endswith(".py"):
        sys.path[0] = str(Path(request.program).parent)
        runpy.run_path(request.program, run_name="__main__")
    else:
        sys.path[0] = request.folder
        runpy.run_module(request.program, run_name="__main__", alter_sys=True)


def run_to_end(request: Request) -> NoReturn:
    """Runs a call and ends this process as the interpreter does, except that loaded modules are not torn down.

    That takes a third of a second where torch is loaded.
    """
    code = 0
    try:
        run(request)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - it is what the interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads, as the interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def preload() -> None:
    """Imports the verbs and what they import late."""
    import evoengine.cli.app
    import evoengine.cli.verbs

    verbs = (module.name for module in pkgutil.iter_modules(evoengine.cli.verbs.__path__, "evoengine.cli.verbs."))
    for name in (*PRELOADED, "evoengine.cli.app", *verbs):
        importlib.import_module(name)
    evoengine.cli.app.root_command()
    fill_caches()
    gc.collect()
    gc.freeze()  # a collection would copy the pages that the processes share


def fill_caches() -> None:
    """Plans a search of the shipped families, whose expressions and templates most calls parse."""
    from evoengine.engine.families import AUTO, choose_families, wanted_spaces
    from evoengine.model import NAMED_PROBLEMS
    from evoengine.target import get_target

    families = choose_families(wanted_spaces(AUTO, None), NAMED_PROBLEMS["tiny"], get_target("l4"))
    for family in families.taken:
        family.valid.starts()


if __name__ == "__main__":
    preload()
    with socket.socket(fileno=int(sys.argv[1])) as end:
        call = serve(end)
    run_to_end(call)
