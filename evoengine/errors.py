"""Every error that EvoEngine raises on purpose, and the statuses in which an evaluation can end.

The tree::

    EvoEngineError                 one line for the user: the thing, the problem, the remedy
    ├── UsageError                 a flag, problem, id or file that the user can correct      (exit 2)
    │   ├── ProblemError           a problem that cannot be parsed or is not supported
    │   ├── FileError              a malformed file; the message names file, key and reason
    │   │   ├── SearchSpaceError   a search space of a kernel family
    │   │   ├── ConfigFileError    evoengine.toml
    │   │   ├── TemplateError      a CUDA template or template.toml
    │   │   ├── WorkloadError      a workload
    │   │   ├── PatchFileError     a recorded patch
    │   │   └── LandscapeError     recorded or imported tuning results
    │   ├── StoreError             the leaderboard: not a leaderboard, locked, read-only, or of another version
    │   ├── LockMismatchError      a lockfile names another kernel than the one built here
    │   └── PatchError             a patch that does not apply to its template
    ├── MissingDependencyError     a missing library or tool; the message names the install command (exit 2)
    ├── MachineError               a failure of this machine: full disk, too many open files  (exit 2)
    │   └── MachineMemoryError     memory or processes are short: fewer workers may help
    ├── ModelError                 a language model's endpoint, reply or budget fails         (exit 2)
    │   ├── ModelConnectionError   the endpoint cannot be reached, or the connection was lost
    │   ├── ModelTimeoutError      no complete reply in time
    │   ├── ModelStatusError       an HTTP status that means failure
    │   ├── ModelReplyError        a reply that cannot be used: too long, truncated, refused, malformed
    │   └── ModelBudgetError       the next call does not fit into the budget
    ├── NothingFoundError          a search ended without a correct kernel                    (exit 1)
    ├── WorkersLostError           workers keep failing, also after a restart                 (exit 3)
    │   └── ClusterLostError       the head of a cluster is gone                              (exit 3)
    ├── DefectError                every candidate fails in the same way: a bug in EvoEngine  (exit 70)
    └── CandidateError             one candidate failed; the search records its status and continues
        ├── RenderError            RENDER_FAILED
        ├── CompileError           COMPILE_FAILED
        │   └── ScreenError        generated code contains what it must not contain
        ├── ResourceError          RESOURCE_LIMIT
        ├── LaunchError            LAUNCH_FAILED
        │   └── DeviceMemoryError  the GPU's memory did not suffice
        ├── CandidateTimeoutError  TIMEOUT
        └── WorkerCrashError       CRASHED
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import ClassVar, Final

_LONGEST: Final = 290
"""Maximum number of characters of an error, so that its line on the terminal, with a prefix, has less than 300."""
_LONGEST_WORD: Final = 80
"""Maximum number of characters of a word in an error that is too long: a path, or a value of any origin."""


def short_line(text: str) -> str:
    """Returns text as one printable line of at most 290 characters.

    What is too long loses its middle: the beginning names the thing, and the end the remedy.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(map(_spelled, line))
    if len(line) <= _LONGEST:
        return line
    return _without_middle(" ".join(_without_middle(word, _LONGEST_WORD) for word in line.split(" ")), _LONGEST)


def _without_middle(text: str, most: int) -> str:
    end = 2 * most // 5
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def _spelled(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


class Status(enum.Enum):
    """Final state of an evaluation."""

    OK = "ok"
    INVALID_CONFIG = "invalid_config"
    RENDER_FAILED = "render_failed"
    COMPILE_FAILED = "compile_failed"
    RESOURCE_LIMIT = "resource_limit"
    LAUNCH_FAILED = "launch_failed"
    PARITY_FAILED = "parity_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    DUPLICATE = "duplicate"
    PRUNED = "pruned"


class EvoEngineError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one line for the user."""


class UsageError(EvoEngineError):
    """An error that the caller can correct: a flag, a name, a file.

    Its text is one printable line of at most 290 characters, because it may repeat the content of a file of unknown
    origin.
    """

    def __str__(self) -> str:
        return short_line(super().__str__())


class ProblemError(UsageError):
    """A problem that cannot be parsed or that no family supports."""


class FileError(UsageError):
    """Invalid content of a file; the message is ``file: key: reason``.

    Args:
        file: Path or name of the file.
        key: Position in the file; empty for the file as a whole.
        reason: What is wrong there.
    """

    def __init__(self, file: Path | str, key: str, reason: str) -> None:
        self.file = str(file)
        self.key = key
        self.reason = reason
        super().__init__(f"{self.file}: {key}: {reason}" if key else f"{self.file}: {reason}")

    def __reduce__(self) -> tuple[type[FileError], tuple[str, str, str]]:
        return type(self), (self.file, self.key, self.reason)


class SearchSpaceError(FileError):
    """A malformed search-space file."""


class TemplateError(FileError):
    """A malformed template or ``template.toml``."""


class WorkloadError(FileError):
    """A malformed file given to ``--workload`` or ``--problems``."""


class PatchFileError(FileError):
    """A malformed file of a recorded patch."""


class LandscapeError(FileError):
    """A malformed file of recorded or imported tuning results."""


class ConfigFileError(FileError):
    """A malformed ``evoengine.toml``."""


class StoreError(UsageError):
    """The leaderboard cannot be opened, read or written."""


class LockMismatchError(UsageError):
    """A lockfile names another kernel than the one built on this machine."""


class PatchError(UsageError):
    """A patch that does not apply to its template, or that leaves the marked regions."""


class MissingDependencyError(EvoEngineError):
    """A library or tool is missing; the message names the command that installs it."""


class MachineError(EvoEngineError):
    """A failure of this machine that no candidate caused; nothing is recorded, and the candidate is tried again."""


class MachineMemoryError(MachineError):
    """This machine is short of memory or of processes; fewer workers need less."""


class ModelError(EvoEngineError):
    """A language model's endpoint, reply or budget fails; ``str(error)`` is one printable line."""

    def __str__(self) -> str:
        return short_line(super().__str__())


class ModelConnectionError(ModelError):
    """The endpoint cannot be reached, or the connection was lost."""


class ModelTimeoutError(ModelError):
    """There was no complete reply before the deadline of the call."""


class ModelStatusError(ModelError):
    """The endpoint answered with an HTTP status that means failure.

    Args:
        message: Text for the user.
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ModelStatusError], tuple[str, int]]:
        return type(self), (str(self), self.status)


class ModelReplyError(ModelError):
    """A reply cannot be used: too long, truncated, refused or malformed."""


class ModelBudgetError(ModelError):
    """The next call does not fit into what is left of the budget."""


class NothingFoundError(EvoEngineError):
    """A search ended without a correct kernel."""


class WorkersLostError(EvoEngineError):
    """Workers keep failing, also after a restart: a device or the compiler is unusable."""


class ClusterLostError(WorkersLostError):
    """The head of a cluster, or the connection to it, is gone."""


class DefectError(EvoEngineError):
    """Every candidate fails in the same way, so the cause is a bug in EvoEngine."""


class CandidateError(EvoEngineError):
    """One candidate failed; the search records it with ``status`` and continues."""

    status: ClassVar[Status] = Status.CRASHED


class RenderError(CandidateError):
    """The template could not be rendered for a config."""

    status = Status.RENDER_FAILED


class CompileError(CandidateError):
    """NVRTC rejected the source or exceeded its time limit."""

    status = Status.COMPILE_FAILED


class ScreenError(CompileError):
    """A generated kernel contains something that generated code must not contain; nothing of it was run."""


class ResourceError(CandidateError):
    """The binary needs more registers, threads or shared memory than the device has."""

    status = Status.RESOURCE_LIMIT


class LaunchError(CandidateError):
    """The device refused the launch, or the kernel faulted (bad address, uninitialised read, deadlock)."""

    status = Status.LAUNCH_FAILED


class DeviceMemoryError(LaunchError):
    """A call did not get its memory on the GPU: the candidate's fault only if it asked for much of its own."""


class CandidateTimeoutError(CandidateError):
    """The candidate did not finish before its deadline."""

    status = Status.TIMEOUT


class WorkerCrashError(CandidateError):
    """The worker process died while it evaluated this candidate."""

    status = Status.CRASHED
