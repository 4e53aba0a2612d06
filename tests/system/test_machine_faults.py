"""Which errors are the machine's: memory, disk, files, processes, libraries; and none of a candidate's."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from evoengine.device.workers.worker_main import Failure
from evoengine.errors import (
    CompileError,
    DeviceMemoryError,
    LaunchError,
    MachineError,
    MachineMemoryError,
    MissingDependencyError,
    StoreError,
    UsageError,
    WorkerCrashError,
)
from evoengine.system import memory
from evoengine.system.machine_faults import machine_fault, with_remedy

MEMORY = (
    MemoryError("Unable to allocate 9.3 GiB"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    OSError("libnvrtc.so.13: cannot allocate memory in static TLS block"),
    RuntimeError("can't start new thread"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
)
OTHER = (
    *(OSError(code, os.strerror(code), "/tmp/x") for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)),
    *(OSError(code, os.strerror(code)) for code in (errno.EMFILE, errno.ENFILE, errno.EFBIG)),
    FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
)
CANDIDATES = (
    LaunchError("the kernel failed: out of memory"),
    DeviceMemoryError("the kernel failed: Out of memory allocating 1,125,899,906,842,624 bytes"),
    CompileError("error: no space left on device"),
    StoreError("board.db: the disk is full"),
    UsageError("no such file"),
    MissingDependencyError("CuPy is missing"),
    KeyError("BLOCK_M"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    WorkerCrashError("killed its worker twice: SIGSEGV"),
)


@pytest.mark.parametrize("error", MEMORY, ids=str)
def test_memory_and_processes_are_the_machines(error: Exception) -> None:
    assert isinstance(machine_fault(error), MachineMemoryError)
    assert isinstance(Failure.of(error).error(), MachineMemoryError), "also across the pipe of a worker"


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_disk_and_files_are_the_machines(error: Exception) -> None:
    fault = machine_fault(error)
    assert type(fault) is MachineError
    line = with_remedy(fault)
    assert str(fault) in line
    assert len(line) > len(str(fault)) or ": " in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("error", CANDIDATES, ids=str)
def test_other_errors_are_not(error: Exception) -> None:
    assert machine_fault(error) is None


def test_a_dependency_that_cannot_be_mapped_is_not_missing() -> None:
    error = MissingDependencyError("NVRTC is missing")
    error.__cause__ = ImportError("libnvrtc.so: failed to map segment from shared object")
    assert isinstance(machine_fault(error), MachineMemoryError)


def test_a_death_counts_as_the_machines_only_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "physical_bytes", lambda: 2**34)
    kills = memory.oom_kills()
    assert memory.memory_death("SIGKILL", kills, os.getpid()) is None
    assert memory.memory_death("SIGKILL", kills - 1, os.getpid()) is not None, "the kernel has killed a process since"
    monkeypatch.setattr(memory, "physical_bytes", lambda: 2**20)
    assert memory.memory_death("SIGSEGV", kills, os.getpid()) is not None
    assert memory.memory_death("exit code 1", kills, os.getpid()) is None


def test_the_limit_of_the_address_space_is_read() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
        left = memory.address_space_bytes()
        assert left is not None
        assert 2**39 < left < 2**40
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_file_cache_in_a_cgroup_is_available(tmp_path: Path) -> None:
    for name, text in (("memory.max", "1000"), ("memory.current", "900"), ("memory.stat", "anon 300\nactive_file 500")):
        (tmp_path / name).write_text(text)
    assert list(memory.cgroup_bytes(tmp_path)) == [600]
