"""Exit codes, and the one place where an exception becomes a line on stderr.

====  =================================================================================================
0     done
1     a search ended without one correct kernel
2     something that the user can mend: a flag, a file, a full disk, a locked leaderboard
3     no device, or no compiler, comes back: everything recorded is kept, and the same command goes on
70    a fault of ours; also when all candidates crash alike, of which then none is recorded
130   interrupted
141   the reader of our output went away
====  =================================================================================================
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Final

import typer

from evoengine.errors import DefectError, EvoEngineError, NothingFoundError, WorkersLostError

OK: Final = 0
NOTHING_FOUND: Final = 1
FAILED: Final = 2
WORKERS_LOST: Final = 3
DEFECT: Final = 70
"""EX_SOFTWARE of sysexits.h: our fault, not the user's."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_MACHINE_FAULTS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the operating system that the user can mend."""


def run_guarded(action: Callable[[], object], *, debug: bool) -> int:
    """Runs an action; no exception leaves it.

    Args:
        action: what to do; an integer that it returns is the exit code.
        debug: print the traceback of a defect as well.
    """
    try:
        code = _run(action, debug)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away: nobody is left to be told, and the interpreter's last flush must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(action: Callable[[], object], debug: bool) -> int:
    try:
        result = action()
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except NothingFoundError as error:
        return _fail(str(error), NOTHING_FOUND)
    except WorkersLostError as error:
        return _fail(
            f"{error}: look at 'nvidia-smi' and 'doctor', then start again; all results are kept", WORKERS_LOST
        )
    except DefectError as error:
        return _fail(str(error), DEFECT)
    except EvoEngineError as error:
        return _fail(str(error), FAILED)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()} (--help lists what there is)", FAILED)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in _MACHINE_FAULTS:
            return _fail(f"{error.filename or 'this machine'}: {error.strerror}", FAILED)
        return _defect(error, debug)
    except Exception as error:  # noqa: BLE001 - the last net: a defect must not become a traceback on the terminal
        return _defect(error, debug)
    return result if isinstance(result, int) else OK


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def _defect(error: Exception, debug: bool) -> int:
    text = "".join(traceback.format_exception(error))
    if debug:
        typer.echo(text, err=True)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="evoengine-", suffix=".log", delete=False) as log:
            log.write(text)
        where = f"please report it with {log.name}"
    except OSError:
        where = "start it again with --debug to see the traceback"
    return _fail(f"unexpected {type(error).__name__}: {str(error)[:200]}: {where}", DEFECT)
