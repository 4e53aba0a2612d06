"""Memory that this process may still use, and signs that the machine ran out of it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from evoengine.errors import MachineMemoryError

_KIB: Final = 1024
_SHORT_BYTES: Final = 256 * 2**20
"""Available memory below which the death of a worker is attributed to the machine: a compilation needs as much."""
_WORKER_OOM_SCORE: Final = "1000"
"""Adds the whole memory to that of a worker when the kernel looks for the largest process."""
_OOM_KILL: Final = re.compile(rb"^oom_kill\s+(\d+)$", re.MULTILINE)
_LETHAL: Final = frozenset(("SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS"))
"""Signals of processes whose memory cannot be allocated: the kernel's OOM killer, C++ libraries, and C libraries."""
_CGROUPS: Final = Path("/sys/fs/cgroup")
_CGROUP_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage of a memory cgroup, in version 2 and in version 1."""


def physical_bytes() -> int | None:
    """Returns the memory that this machine, or this process's cgroup, can still provide; None where it is unknown."""
    return min((*_system_bytes(), *(left for one in _own_cgroups() for left in cgroup_bytes(one))), default=None)


def address_space_bytes(pid: int | None = None) -> int | None:
    """Returns the address space that a process may still use; None without a limit.

    Args:
        pid: Id of the process; None for this one.
    """
    return min(_address_space_bytes(pid or os.getpid()), default=None)


def oom_kills() -> int:
    """Returns how many processes the kernel has killed for lack of memory; it only grows. 0 where this is unknown."""
    return sum(map(_oom_count, _oom_files()))


@cache
def _oom_files() -> tuple[Path, ...]:
    """Files that count such processes; found once, because every call of a worker reads them."""
    names = ("memory.events", "memory.oom_control")
    places = (Path("/proc/vmstat"), *(folder / name for folder in _own_cgroups() for name in names))
    return tuple(place for place in places if place.is_file())


def _oom_count(file: Path) -> int:
    try:
        found = _OOM_KILL.search(file.read_bytes())
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def offer_to_oom_killer() -> None:
    """Makes the kernel kill this process and its children before others: a search survives the loss of a worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_WORKER_OOM_SCORE)


def memory_death(how: str, kills_before: int, pid: int) -> MachineMemoryError | None:
    """Returns the error of a worker that died because the machine is short of memory; None if it is not.

    Args:
        how: Cause of death: the name of a signal.
        kills_before: Value of :func:`oom_kills` before the worker's call.
        pid: Process whose limit of the address space the worker inherited.
    """
    if how == "SIGKILL" and oom_kills() > kills_before:
        return MachineMemoryError(
            "this machine: out of memory, the kernel killed a worker: end other programs, raise the cgroup's limit or "
            "give fewer --workers"
        )
    known = [left for left in (physical_bytes(), address_space_bytes(pid)) if left is not None]
    if how not in _LETHAL or not known or min(known) >= _SHORT_BYTES:
        return None
    left = min(known)
    return MachineMemoryError(
        f"this machine: out of memory, a worker died of {how} with {left / 2**20:.0f} MiB left: end other programs, "
        "raise the limit ('ulimit -v', cgroup) or give fewer --workers"
    )


def _system_bytes() -> Iterator[int]:
    for name, text in _words(Path("/proc/meminfo")):
        if name == "MemAvailable:":
            yield int(text) * _KIB


def _address_space_bytes(pid: int) -> Iterator[int]:
    try:
        limit = resource.prlimit(pid, resource.RLIMIT_AS)[0]
    except (OSError, AttributeError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    for name, text in _words(Path(f"/proc/{pid}/status")):
        if name == "VmSize:":
            yield max(0, limit - int(text) * _KIB)


def cgroup_bytes(folder: Path) -> Iterator[int]:
    """Yields the memory that a cgroup can still provide; nothing if it has no limit."""
    for limit_file, used_file in _CGROUP_FILES:
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None:
            yield max(0, limit - used + _cached_bytes(folder))


def _cached_bytes(folder: Path) -> int:
    """Returns the file cache that a cgroup's usage includes and that the kernel gives up when memory is needed."""
    return sum(int(text) for name, text in _words(folder / "memory.stat") if name in ("inactive_file", "active_file"))


def _own_cgroups() -> Iterator[Path]:
    """Yields the folders of this process's memory cgroup and its ancestors, of both versions."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            if folder.is_relative_to(root) and folder.is_dir():
                yield folder


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _words(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the first word of each line and the whole number after it; lines without one are left out."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, rest = line.partition(" ") if " " in line else line.partition("\t")
        value = rest.split()
        if value and value[0].isdigit():
            yield name.strip(), value[0]
