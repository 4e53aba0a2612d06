"""Plans of a cluster's hosts; the cluster itself is in ``tests/cluster``."""

from __future__ import annotations

import pytest

from evoengine.engine.cluster import HostSpec, Node, hosts_of


def cores(specs: tuple[HostSpec, ...]) -> list[int]:
    return [core for spec in specs for core in spec.cores]


@pytest.mark.parametrize(("cpus", "gpus"), [(128, 8), (64, 4), (16, 1), (8, 4), (5, 4), (3, 1), (2, 1), (96, 0)])
def test_timing_and_compilation_share_no_core(cpus: int, gpus: int) -> None:
    node = Node("n", "host", cpus, gpus)
    devices, compilers = hosts_of(node, "device", on_gpu=True), hosts_of(node, "compile", on_gpu=True)
    assert [spec.num_gpus for spec in devices] == [1] * gpus
    taken = cores(devices) + cores(compilers)
    assert sorted(taken) == list(range(cpus)), "each core is used once"
    assert sum(spec.num_cpus for spec in (*devices, *compilers)) == cpus, "Ray knows of all of them"
    assert all(spec.cores for spec in devices)
    assert sum(spec.size for spec in compilers) == len(cores(compilers)) > 0


def test_emulated_devices_are_as_many_as_cores() -> None:
    node = Node("n", "host", 4, 2)
    (device,), (compiler,) = hosts_of(node, "device", on_gpu=False), hosts_of(node, "compile", on_gpu=False)
    assert (device.size, compiler.size, device.num_gpus) == (4, 4, 0)
    assert device.num_cpus + compiler.num_cpus == 4


def test_a_node_without_cpus_runs_nothing() -> None:
    node = Node("head", "host", 0, 1)
    for on_gpu in (True, False):
        assert (hosts_of(node, "device", on_gpu=on_gpu), hosts_of(node, "compile", on_gpu=on_gpu)) == ((), ())
