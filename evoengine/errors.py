"""Every error that EvoEngine raises on purpose.

The tree::

    EvoEngineError                 one line that says what happened and what to do
    ├── UsageError                 a flag, problem, id or file that the user can correct      (exit 2)
    │   ├── ProblemError           a problem that cannot be parsed or is not supported
    │   ├── SearchSpaceError       a malformed search-space file: file, key, reason
    │   ├── ConfigFileError        a malformed file of defaults: file, key, reason
    │   ├── TemplateError          a malformed template or template.toml: file, key, reason
    │   ├── WorkloadError          a malformed workload: file, key, reason
    │   ├── LandscapeError         a malformed landscape: file, key, reason
    │   ├── StoreError             a leaderboard that is foreign, locked, unwritable, or of another version
    │   └── LockMismatchError      a lockfile names another kernel than the one that is built here
    ├── MissingDependencyError     something missing on this machine, with the command that installs it (exit 2)
    ├── MachineError               this machine stands in the way: a full disk, a lack of memory (exit 2)
    ├── NothingFoundError          a search ended without a correct kernel                     (exit 1)
    ├── WorkersLostError           a device, or the compiler, does not come back               (exit 3)
    ├── DefectError                every candidate fails alike, so the fault is ours           (exit 70)
    └── CandidateError             one candidate failed; it carries the status, the search goes on
        ├── RenderError            RENDER_FAILED
        ├── CompileError           COMPILE_FAILED
        ├── ResourceError          RESOURCE_LIMIT
        ├── LaunchError            LAUNCH_FAILED
        ├── CandidateTimeoutError  TIMEOUT
        └── WorkerCrashError       CRASHED
"""

from __future__ import annotations

from pathlib import Path


class EvoEngineError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one line for the user."""


class UsageError(EvoEngineError):
    """The caller can correct this: a flag, a name, a file."""


class ProblemError(UsageError):
    """A problem that cannot be parsed or that no family supports."""


class FileError(UsageError):
    """Bad input in a file, told as ``file: key: reason``."""

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
    """A malformed file of ``--workload``."""


class LandscapeError(FileError):
    """A malformed file of recorded or foreign tuning results."""


class ConfigFileError(FileError):
    """A malformed ``evoengine.toml``."""


class StoreError(UsageError):
    """The leaderboard cannot be opened, read or written as asked."""


class LockMismatchError(UsageError):
    """A lockfile names another kernel than the one that is built here."""


class MissingDependencyError(EvoEngineError):
    """Something is missing on this machine; the message names the command that installs it."""


class MachineError(EvoEngineError):
    """This machine stands in the way, not a candidate: a full disk, too many open files."""


class NothingFoundError(EvoEngineError):
    """A search ended without one correct kernel."""


class WorkersLostError(EvoEngineError):
    """No worker can go on: a device, or the compiler, fails in fresh processes too."""


class DefectError(EvoEngineError):
    """Every candidate fails in the same way, which no candidate can have caused."""


class CandidateError(EvoEngineError):
    """One candidate failed. The search records it and goes on."""


class RenderError(CandidateError):
    """The template could not be rendered for a config."""


class CompileError(CandidateError):
    """NVRTC rejected the source, or did not finish in time."""


class ResourceError(CandidateError):
    """The binary needs more registers, threads or shared memory than the device has."""


class LaunchError(CandidateError):
    """The device refused the launch or the kernel faulted (bad address, uninitialised read, deadlock)."""


class CandidateTimeoutError(CandidateError):
    """The candidate did not finish before its deadline."""


class WorkerCrashError(CandidateError):
    """The worker process died while it had this candidate."""
