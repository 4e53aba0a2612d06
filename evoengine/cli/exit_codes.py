"""Exit codes, and the conversion of exceptions to one line on stderr.

====  ====================================================================================================
0     done
1     nothing found, or a check failed: no correct kernel, a lockfile that is not up to date, a self-test that failed,
      or a tunable without effect
2     usage or environment error: an option, a file, a full disk, a locked leaderboard
3     all devices or all compilers are lost: recorded results are kept, and the same command resumes
70    internal error; please report it. Also when all candidates fail alike; then none of them is recorded
130   interrupted by Ctrl-C, SIGTERM or SIGHUP
141   the reader of an endless output closed the pipe
====  ====================================================================================================
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer

from evoengine.cli.output.echo import echo_error, echo_lines
from evoengine.errors import (
    ClusterLostError,
    DefectError,
    EvoEngineError,
    MachineError,
    NothingFoundError,
    WorkersLostError,
)
from evoengine.system.machine_faults import machine_fault, with_remedy
from evoengine.system.stop_signals import on_stop_signal
from evoengine.system.streams import lasting_output, open_missing_streams

OK: Final = 0
NOTHING_FOUND: Final = 1
FAILED: Final = 2
WORKERS_LOST: Final = 3
DEFECT: Final = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
_PYDANTIC_PREFIX: Final = "Value error, "
"""Beginning of pydantic's messages, from which typer makes those about values that are no choice."""


def run_guarded(action: Callable[[], object], *, debug: bool) -> int:
    """Runs an action and converts every exception to an exit code.

    Closed streams, full devices and readers that end early stop no work. Only an output that could not be written for
    another reason than that its reader is gone is an error.

    Args:
        action: Function to call; an integer that it returns is the exit code.
        debug: Whether to print the traceback of an internal error.
    """
    open_missing_streams()
    with lasting_output() as outputs:
        with on_stop_signal(_interrupt, once=False):
            code = _run(action, debug)
        sys.stdout.flush()
        stdout = outputs.get("stdout")
        if code == OK and stdout is not None and stdout.error is not None and not stdout.lost_reader:
            code = _fail(f"standard output: {stdout.error.strerror}: some of the output is lost", FAILED)
    return code


def _interrupt() -> None:
    raise KeyboardInterrupt


def _run(action: Callable[[], object], debug: bool) -> int:
    try:
        result = action()
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except EvoEngineError as error:
        return _fail(*_expected(error))
    except typer.TyperException as error:
        message = error.format_message().replace(f": {_PYDANTIC_PREFIX}", ": ", 1)
        return _fail(f"{message} (--help lists the options)", FAILED)
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - an internal error must not become a traceback on the terminal
        return _unexpected(error, debug)
    return result if isinstance(result, int) else OK


def _expected(error: EvoEngineError) -> tuple[str, int]:
    """Returns the line and the exit code of an error that EvoEngine raised on purpose."""
    if isinstance(error, NothingFoundError):
        return str(error), NOTHING_FOUND
    if isinstance(error, WorkersLostError):
        check = "" if isinstance(error, ClusterLostError) else ": check 'nvidia-smi' and 'doctor'"
        return f"{error}{check}, then run the same command again; all results are kept", WORKERS_LOST
    if isinstance(error, DefectError):
        return str(error), DEFECT
    return with_remedy(error) if isinstance(error, MachineError) else str(error), FAILED


def _unexpected(error: Exception, debug: bool) -> int:
    """Reports an error of the machine or of a named file as such, and any other as an internal one."""
    fault = machine_fault(error)
    if fault is not None:
        return _fail(with_remedy(fault), FAILED)
    if isinstance(error, OSError) and error.strerror and (error.filename or isinstance(error, PermissionError)):
        where = error.filename or "this machine"
        return _fail(f"{where}: {error.strerror}: give another file, or change its mode", FAILED)
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return _fail("the working directory no longer exists: change to another folder", FAILED)
    return _defect(error, debug)


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


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
