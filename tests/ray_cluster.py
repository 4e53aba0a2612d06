"""A real Ray cluster of several nodes on this machine, for tests and measurements; a process can have one."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


class LocalCluster:
    """A head without CPUs and some nodes, each of processes of its own.

    Args:
        nodes: Number of nodes.
        cpus: CPUs of each node; what Ray places, not what the machine has.
    """

    def __init__(self, nodes: int, cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self._cpus = cpus
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short, because it holds sockets
        system = {
            "health_check_period_ms": 1000,  # with the next line 5 s, else half a minute
            "health_check_failure_threshold": 5,
            "worker_niceness": 0,  # else workers starve beside other tests
        }
        few = {"include_log_monitor": False, "temp_dir": self._folder}
        head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, "_system_config": system}
        (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)  # where Ray notes the head's address
        self._few = few
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head | few)
        self._nodes = [self.add_node() for _ in range(nodes)]
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self) -> Any:
        """Adds a node, which a running search takes into use."""
        return self._cluster.add_node(num_cpus=self._cpus, **self._few)

    def kill_actor(self) -> None:
        """Kills one device worker's actor, as ``kill -9`` does."""
        os.kill(next(self._actors(self._nodes[0])), signal.SIGKILL)

    def kill_node(self) -> None:
        """Kills all processes of the second node."""
        node = self._nodes.pop(1)
        actors = list(self._actors(node))
        self._cluster.worker_nodes.discard(node)
        for pid in (*self._pids(node), *actors):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills everything: Ray would wait half a minute for a head that was killed."""
        nodes = [*self._cluster.worker_nodes, self._cluster.head_node]
        for pid in [pid for node in nodes for pid in self._pids(node)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in nodes:
            for group in node.all_processes.values():
                for info in group:
                    info.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pids(self, node: Any) -> list[int]:
        return [info.process.pid for group in node.all_processes.values() for info in group]

    def _actors(self, node: Any) -> Iterator[int]:
        """Process ids of the actors of a node; their parent is the node's raylet."""
        parents = set(self._pids(node))
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                title = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if title.startswith(b"ray::PoolHost") and parent in parents:
                    yield int(folder.name)


@contextmanager
def local_cluster(nodes: int, cpus: int = 1) -> Iterator[LocalCluster]:
    """Starts a cluster for the duration of a block; skips the test where Ray is missing."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    cluster = LocalCluster(nodes, cpus)
    try:
        yield cluster
    finally:
        cluster.close()
