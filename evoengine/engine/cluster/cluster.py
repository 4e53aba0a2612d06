"""A Ray cluster: its nodes, the actors on them, and the heartbeat by which the coordinator detects a lost head."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from evoengine.engine.cluster.host import Answer, HostFacts, PoolHost
from evoengine.engine.cluster.layout import WHOLE, HostSpec, Node, Part, Role, plan_hosts
from evoengine.errors import MissingDependencyError, UsageError

_HEARTBEAT_S: Final = 1.0
"""Interval between two polls of the head."""
_SILENCE_S: Final = 20.0
"""Time without an answer after which the head counts as lost. Ray itself gives up after a minute."""
_CLOSE_S: Final = 10.0
_CONNECT_S: Final = 5.0
_NO_CLUSTER: Final = "no Ray cluster answers: start one with 'ray start --head', or give the address of its head"
_SETTINGS: Final = 4
_FRAME_TYPE: Final = 3
"""Index of a frame's type in its header, after the length."""
_FRAME_HEADER_BYTES: Final = 9
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
"""First bytes that a client sends: a fixed text and an empty SETTINGS frame."""
_CARRIED: Final = ("EVOENGINE_CACHE", "EVOENGINE_DATA")
"""Environment variables of the coordinator that are passed to the hosts."""


class Host:
    """A running actor.

    Args:
        spec: Plan of the actor.
        actor: Ray's handle.
    """

    def __init__(self, spec: HostSpec, actor: Any) -> None:
        self.spec = spec
        self._actor = actor

    def facts(self) -> Future[HostFacts]:
        """Asks for the facts of its node; the future ends when the actor has been placed and started."""
        found: Future[HostFacts] = self._actor.facts.remote().future()
        return found

    def open(self, make: Any) -> Future[None]:
        """Starts its workers.

        Args:
            make: Reference to a :data:`~evoengine.engine.cluster.host.MakeWorkers` (see :meth:`Cluster.share`).
        """
        done: Future[None] = self._actor.open.remote(make).future()
        return done

    def run(self, kind: type, *arguments: Any) -> Future[Answer]:
        """Runs a job; arguments may be references. An exception of the future means that the actor is lost."""
        answer: Future[Answer] = self._actor.run.remote(kind, *arguments).future()
        return answer

    def kill(self) -> None:
        """Ends the actor and its processes."""
        import ray

        with suppress(Exception):  # it may be gone already
            ray.kill(self._actor)


class Cluster:
    """A connection to a Ray cluster; a process has at most one.

    Args:
        address: ``auto`` for the cluster of this machine, or the address of a head.
        part: Part of the cluster to use.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: There is no cluster at this address.
    """

    def __init__(self, address: str, part: Part = WHOLE) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingDependencyError("--cluster needs Ray: python -m pip install 'evoengine[ray]'") from error
        head = _reachable(address)
        carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
        try:
            ray.init(
                address=head,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env={"env_vars": carried} if carried else None,
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"--cluster {address}: {_NO_CLUSTER}") from error
        self.address = address
        self.part = part
        self._last_answer_s = time.monotonic()
        self._nodes = _nodes()
        self._closed = threading.Event()
        self._heartbeat = threading.Thread(target=self._poll_nodes, name="cluster-heartbeat", daemon=True)
        self._heartbeat.start()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that are alive, as of the last answer of the head."""
        return self._nodes

    @property
    def is_silent(self) -> bool:
        """Whether the head does not answer any more."""
        return time.monotonic() - self._last_answer_s > _SILENCE_S

    def plan(self, role: Role, *, on_gpu: bool) -> tuple[HostSpec, ...]:
        """Plans the actors of a role on the nodes that are alive, in this part of the cluster."""
        return plan_hosts(self.nodes, role, on_gpu=on_gpu, part=self.part)

    def start(self, spec: HostSpec) -> Host:
        """Starts an actor; Ray places it when its node has the resources.

        A call is made at most once: neither the actor nor its calls are repeated by Ray.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = ray.remote(PoolHost).options(
            num_cpus=spec.num_cpus,
            num_gpus=spec.num_gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2 * spec.size + 2,
            scheduling_strategy=NodeAffinitySchedulingStrategy(spec.node.id, soft=False),
        )
        return Host(spec, actor.remote(spec.cores, spec.size, on_gpu=spec.num_gpus > 0))

    def share(self, value: Any) -> Any:
        """Puts a value into the object store, which sends it to each node once; returns its reference."""
        import ray

        return ray.put(value)

    def close(self) -> None:
        """Disconnects, which ends all actors; a lost head delays it by at most 10 s."""
        import ray

        self._closed.set()
        thread = threading.Thread(target=ray.shutdown, daemon=True)
        thread.start()
        thread.join(_CLOSE_S)

    def _poll_nodes(self) -> None:
        while not self._closed.wait(_HEARTBEAT_S):
            with suppress(Exception):  # whatever it is, the head did not answer
                self._nodes = _nodes()
                self._last_answer_s = time.monotonic()


@contextmanager
def open_cluster(address: str, part: Part = WHOLE) -> Iterator[Cluster]:
    """Connects to a cluster for the duration of a block.

    Args:
        address: As for :class:`Cluster`.
        part: Part of the cluster to use.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: There is no cluster at this address.
    """
    cluster = Cluster(address, part)
    try:
        yield cluster
    finally:
        cluster.close()


def _reachable(address: str) -> str:
    """Returns the address of a head that answers; Ray itself would try for minutes.

    Raises:
        UsageError: No head answers.
    """
    head = address
    if address == "auto":
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # noqa: S108 - Ray's own place
        head = os.environ.get("RAY_ADDRESS", "") or (file.read_text().strip() if file.is_file() else "")
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
            if not _speaks_http2(connection):
                raise ConnectionError("no HTTP/2 server")
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"--cluster {address}: {_NO_CLUSTER}") from error
    return head


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other end answers like a head of Ray, which speaks gRPC: with a SETTINGS frame (RFC 9113, 3.4)."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":  # a frame would come after a handshake with certificates
        return True
    connection.sendall(_HTTP2_PREFACE)
    header = b""
    while len(header) < _FRAME_HEADER_BYTES:
        received = connection.recv(_FRAME_HEADER_BYTES - len(header))
        if not received:
            return False
        header += received
    return header[_FRAME_TYPE] == _SETTINGS


def _nodes() -> tuple[Node, ...]:
    import ray

    listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return tuple(sorted(map(_node, (one for one in listed if one["Alive"])), key=lambda node: (node.name, node.id)))


def _node(found: Mapping[str, Any]) -> Node:
    has = found["Resources"]
    return Node(found["NodeID"], found["NodeManagerHostname"], int(has.get("CPU", 0)), int(has.get("GPU", 0)))
