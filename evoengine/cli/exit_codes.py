"""Exit codes, and the conversion of exceptions to one line on stderr.

====  ====================================================================================================
0     done
1     nothing found: a search ended without a correct kernel
2     usage or environment error: an option, a file, a full disk, a locked leaderboard
3     all devices or all compilers are lost: recorded results are kept, and the same command resumes
70    internal error; please report it. Also when all candidates fail alike; then none of them is recorded
130   interrupted
141   the reader of the output closed the pipe
====  ====================================================================================================
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

from evoengine.cli.output.echo import echo_error, echo_lines
from evoengine.errors import DefectError, EvoEngineError, NothingFoundError, WorkersLostError

OK: Final = 0
NOTHING_FOUND: Final = 1
FAILED: Final = 2
WORKERS_LOST: Final = 3
DEFECT: Final = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_MACHINE_FAULTS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Operating-system errors that the user can resolve."""


def run_guarded(action: Callable[[], object], *, debug: bool) -> int:
    """Runs an action and converts every exception to an exit code.

    Args:
        action: Function to call; an integer that it returns is the exit code.
        debug: Whether to print the traceback of an internal error.
    """
    try:
        code = _run(action, debug)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone: print nothing, and keep the interpreter's last flush from failing.
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
            f"{error}: check 'nvidia-smi' and 'doctor', then run the same command again; all results are kept",
            WORKERS_LOST,
        )
    except DefectError as error:
        return _fail(str(error), DEFECT)
    except EvoEngineError as error:
        return _fail(str(error), FAILED)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()} (--help lists the options)", FAILED)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in _MACHINE_FAULTS:
            return _fail(f"{error.filename or 'this machine'}: {error.strerror}", FAILED)
        return _defect(error, debug)
    except Exception as error:  # noqa: BLE001 - an internal error must not become a traceback on the terminal
        return _defect(error, debug)
    return result if isinstance(result, int) else OK


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    echo_error(message)
    return code


def _defect(error: Exception, debug: bool) -> int:
    text = "".join(traceback.format_exception(error))
    if debug:
        echo_lines(text, err=True)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="evoengine-", suffix=".log", delete=False) as log:
            log.write(text)
        where = f"please report it with {log.name}"
    except OSError:
        where = "run it again with --debug to see the traceback"
    return _fail(f"unexpected {type(error).__name__}: {str(error)[:200]}: {where}", DEFECT)
