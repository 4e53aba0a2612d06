"""Plans of a cluster's hosts, and its queue without Ray; the cluster itself is in ``tests/cluster``."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine import __version__
from evoengine.engine.cluster import service as cluster_service
from evoengine.engine.cluster.cluster import Cluster
from evoengine.engine.cluster.host import Answer, HostFacts, templates_key
from evoengine.engine.cluster.layout import HostSpec, Node, Part, Role, plan_hosts
from evoengine.engine.cluster.search import ClusterDevices
from evoengine.engine.cluster.service import ClusterService
from evoengine.engine.devices.gpus import Gpu
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import UsageError, WorkerCrashError
from evoengine.model import Config
from evoengine.search.candidate.jobs import Compile, Job

ROLES: tuple[Role, ...] = ("device", "compile")


def cores(specs: tuple[HostSpec, ...]) -> list[int]:
    return [core for spec in specs for core in spec.cores]


@pytest.mark.parametrize(("cpus", "gpus"), [(128, 8), (64, 4), (16, 1), (8, 4), (5, 4), (3, 1), (2, 1), (96, 0)])
def test_timing_and_compilation_share_no_core(cpus: int, gpus: int) -> None:
    node = Node("n", "host", cpus, gpus)
    devices, compilers = plan_hosts([node], "device", on_gpu=True), plan_hosts([node], "compile", on_gpu=True)
    assert [spec.num_gpus for spec in devices] == [1] * gpus
    taken = cores(devices) + cores(compilers)
    assert sorted(taken) == list(range(cpus)), "each core is used once"
    assert sum(spec.num_cpus for spec in (*devices, *compilers)) == cpus, "Ray knows of all of them"
    assert all(spec.cores for spec in devices)
    assert sum(spec.size for spec in compilers) == len(cores(compilers)) > 0


def test_emulated_devices_are_as_many_as_cores() -> None:
    node = Node("n", "host", 4, 2)
    (device,), (compiler,) = plan_hosts([node], "device", on_gpu=False), plan_hosts([node], "compile", on_gpu=False)
    assert (device.size, compiler.size, device.num_gpus) == (4, 4, 0)
    assert device.num_cpus + compiler.num_cpus == 4


def test_a_node_without_cpus_runs_nothing() -> None:
    node = Node("head", "host", 0, 1)
    for on_gpu in (True, False):
        assert (plan_hosts([node], "device", on_gpu=on_gpu), plan_hosts([node], "compile", on_gpu=on_gpu)) == ((), ())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_parts_share_no_device_and_no_core(count: int, on_gpu: bool) -> None:
    nodes = [Node("a", "a", 64, 4), Node("b", "b", 30, 1), Node("c", "c", 16, 0), Node("d", "d", 0, 2)]
    for role in ROLES:
        whole = plan_hosts(nodes, role, on_gpu=on_gpu)
        parts = [plan_hosts(nodes, role, on_gpu=on_gpu, part=Part(number, count)) for number in range(count)]
        used = [spec for part in parts for spec in part]
        assert sum(spec.size for spec in used) == sum(spec.size for spec in whole)
        assert sum(spec.num_cpus for spec in used) == sum(spec.num_cpus for spec in whole)
        for node in nodes:
            here = [core for spec in used if spec.node == node for core in spec.cores]
            assert sorted(here) == sorted(cores(tuple(spec for spec in whole if spec.node == node)))
        if role == "device":
            sizes = [sum(spec.size for spec in part) for part in parts]
            assert max(sizes) - min(sizes) <= 1


def test_compilers_stay_with_the_gpus_of_their_part() -> None:
    nodes = [Node("a", "a", 64, 4), Node("b", "b", 64, 4)]
    for number in range(4):
        part = Part(number, 4)
        places = [{spec.node for spec in plan_hosts(nodes, role, on_gpu=True, part=part)} for role in ROLES]
        assert places == [{nodes[number // 2]}] * 2


H200 = Gpu("NVIDIA H200", 90, "13.0", 141 * 2**30, "0000:4D:00.0", uuid="GPU-1")
OTHERS = {
    "NVIDIA L4": Gpu("NVIDIA L4", 89, "13.0", 23 * 2**30, "0000:4D:00.0", uuid="GPU-2"),
    "no GPU": None,
}


@pytest.mark.parametrize("words", OTHERS)
def test_gpus_of_different_types_are_not_used_together(words: str) -> None:
    devices = ClusterDevices(None, on_gpu=True, gpu=H200, sanitizer="")  # type: ignore[arg-type]
    facts = HostFacts("node7", __version__, templates_key(), replace(H200, uuid="GPU-9", pci_bus_id="0000:9D:00.0"), "")
    assert devices.objection("device", facts) == ""
    other = replace(facts, gpu=OTHERS[words])
    assert "node7" in devices.objection("device", other)
    assert words in devices.objection("device", other)
    assert devices.objection("compile", other) == "", "compilation needs no GPU"


@pytest.mark.parametrize(("change", "words"), [({"version": "9.9"}, "9.9"), ({"templates": "x"}, "other templates")])
def test_nodes_with_another_evoengine_are_not_used(change: dict[str, str], words: str) -> None:
    devices = ClusterDevices(None, on_gpu=False, gpu=None, sanitizer="")  # type: ignore[arg-type]
    facts = HostFacts("node7", __version__, templates_key(), None, "")
    assert devices.objection("compile", facts) == devices.objection("device", facts) == ""
    for role in ("compile", "device"):
        assert words in devices.objection(role, replace(facts, **change))  # type: ignore[arg-type]


def test_a_head_that_does_not_answer_is_refused_in_one_line() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=rf"--cluster 127\.0\.0\.1:{port}") as caught:
        Cluster(f"127.0.0.1:{port}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("says", [b"", b"220 mail.example ready\r\n"], ids=["nothing", "another protocol"])
@pytest.mark.every(2)
def test_a_port_that_is_no_head_is_refused(says: bytes, tmp_path: Path) -> None:
    """Ray would wait for minutes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "evoengine",
            "search",
            "--cluster",
            address,
            "--db",
            str(tmp_path / "board.db"),
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as search:
            try:
                server.settimeout(60)
                with server.accept()[0] as connection:
                    connection.sendall(says)
                    _, error = search.communicate(timeout=60)
            finally:
                search.kill()
    assert search.returncode == 2
    assert f"--cluster {address}" in error


@pytest.mark.parametrize("address", ["host", "x y:1", "host:0", "ray://host:1", "-x:1", "host:1;rm"])
def test_addresses_have_a_port(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        SearchOptions(cluster=address)


def test_a_replay_has_no_cluster() -> None:
    with pytest.raises(UsageError, match="--device 'replay:x'"):
        SearchOptions(cluster="auto", device="replay:x")


# -- the queue --------------------------------------------------------------------------------------------------------

JOB: Job[Any] = Compile(Config.of("mma", {}))


def ended(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class FakeHost:
    """A host that is ready at once, and so are its jobs."""

    def facts(self) -> Future[Any]:
        return ended("facts")

    def open(self, make: Any) -> Future[Any]:
        return ended(None)

    def run(self, kind: type, *arguments: Any) -> Future[Any]:
        return ended(Answer("compiled", None, ()))

    def kill(self) -> None:
        pass


class FakeCluster:
    """One node with one host."""

    is_silent = False
    nodes = (Node("a", "box", 8, 0),)

    def plan(self, role: Role, *, on_gpu: bool) -> tuple[HostSpec, ...]:
        return plan_hosts(self.nodes, role, on_gpu=on_gpu)

    def start(self, spec: HostSpec) -> FakeHost:
        return FakeHost()

    def share(self, value: Any) -> Any:
        return value


def served(make: Any) -> ClusterService:
    cluster: Any = FakeCluster()
    return ClusterService(cluster, "compile", on_gpu=False, kinds=(Compile,), make=make, objection=lambda facts: "")


def test_hosts_that_wait_for_their_inputs_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_service, "PATIENCE_S", 0.3)
    monkeypatch.setattr(cluster_service, "TICK_S", 0.02)
    made = threading.Event()
    with closing(served(lambda: made.wait(10))) as service:
        result = service.submit(JOB)
        time.sleep(0.6)
        made.set()
        assert result.result(10) == "compiled"


def test_a_job_for_a_closed_service_fails() -> None:
    service = served(lambda: None)
    service.close()
    with pytest.raises(WorkerCrashError, match="stopped"):
        service.submit(JOB).result(0.5)
