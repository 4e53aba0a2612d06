"""A search on a Ray cluster: the devices that it uses, and its two services."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from evoengine import __version__
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.cluster.cluster import Cluster
from evoengine.engine.cluster.host import HostFacts, MakeCompileWorkers, MakeDeviceWorkers, MakeWorkers, templates_key
from evoengine.engine.cluster.layout import HostSpec, Node, Role
from evoengine.engine.cluster.service import ClusterService
from evoengine.engine.devices.choice import DeviceChoice, check_support, described, type_of
from evoengine.engine.devices.gpus import Gpu
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.workers.pools import examination_jobs
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.search.candidate.build import BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.jobs import Compile, Job
from evoengine.search.candidate.setup import Setup
from evoengine.target import Target

_PROBE_S: Final = 60.0
_PROBE_GPUS: Final = 0.01
"""Share of a GPU that a probe requests, so that Ray places it where a GPU is not fully in use and makes that GPU
visible."""


@dataclass(frozen=True)
class ClusterDevices:
    """The devices of a search on a cluster."""

    cluster: Cluster
    on_gpu: bool
    gpu: Gpu | None
    """A GPU of the type that is used; None for the emulator."""
    sanitizer: str
    """Path of compute-sanitizer on a node; empty unless all nodes with GPUs have it."""

    def workers(self, role: Role) -> int:
        """Number of workers of a role on the nodes that are alive."""
        return sum(spec.size for spec in self.cluster.plan(role, on_gpu=self.on_gpu))

    def service(self, role: Role, kinds: frozenset[type[Job[Any]]], make: Callable[[], MakeWorkers]) -> ClusterService:
        """Starts the service of a role on all nodes."""
        return ClusterService(
            self.cluster, role, on_gpu=self.on_gpu, kinds=kinds, make=make, objection=partial(self.objection, role)
        )

    def compiler(self, setup: BuildSetup, limit_s: float) -> ClusterService:
        """Starts the compile workers of all nodes."""
        make = MakeCompileWorkers(setup, limit_s, self.on_gpu)
        return self.service("compile", frozenset((Compile,)), lambda: make)

    def examiner(self, prepare: Callable[[], Setup], target: Target, *, sanitizer: bool) -> ClusterService:
        """Starts the device workers of all nodes.

        Args:
            prepare: Function that draws the inputs; called in a thread.
            target: GPU that runs or is predicted.
            sanitizer: Whether compute-sanitizer is used.
        """
        kinds = examination_jobs(sanitizer=sanitizer, predicted=not self.on_gpu)
        return self.service("device", kinds, lambda: MakeDeviceWorkers(prepare(), target))

    def objection(self, role: Role, facts: HostFacts) -> str:
        """Returns why a host cannot be used, because its results could differ from the others'; empty if it can."""
        if facts.version != __version__:
            return f"{facts.node} has EvoEngine {facts.version}, not {__version__}: install that there"
        if facts.templates != templates_key():
            return f"{facts.node} has other templates: install the same EvoEngine there, and the same EVOENGINE_DATA"
        if self.gpu is None or role == "compile":
            return ""
        if facts.gpu is None:
            return f"{facts.node}: CUDA sees no GPU there: run 'doctor' on it"
        same = type_of(facts.gpu) == type_of(self.gpu)
        return "" if same else f"{facts.node} has {described(facts.gpu)}, not {described(self.gpu)}"


def choose_on_cluster(options: SearchOptions, cluster: Cluster) -> tuple[DeviceChoice, ClusterDevices]:
    """Resolves ``--device`` on a cluster: ``auto``, ``cuda``, ``cuda:MODEL`` or ``emulator``.

    Raises:
        UsageError: The device is unknown, the GPUs are of several types, the device does not support an option, or
            this part of the cluster has no device.
        MissingDependencyError: A GPU is requested, and the cluster has none.
    """
    kind, _, which = options.device.partition(":")
    if kind not in ("auto", "cuda", "emulator") or (which and kind != "cuda"):
        known = "auto, cuda, cuda:MODEL such as cuda:H200, or emulator"
        raise UsageError(f"--cluster takes no --device '{options.device}': choose {known}")
    with_gpus = [node for node in cluster.nodes if node.gpus and node.cpus]
    if kind == "cuda" and not with_gpus:
        raise MissingDependencyError(f"the cluster at {cluster.address} has no GPU: see 'ray status'")
    on_gpu = kind != "emulator" and bool(with_gpus)
    specs = cluster.plan("device", on_gpu=on_gpu)
    if not specs and cluster.part.count > 1:
        raise UsageError(f"the cluster has fewer devices than {cluster.part.count} parts: choose fewer --cluster-parts")
    if not on_gpu:
        check_support(options, "emulator")
        devices = ClusterDevices(cluster, on_gpu=False, gpu=None, sanitizer="")
        reason = "" if kind == "emulator" else "the cluster has no GPU"
        bindings = (GpuBinding(),) * devices.workers("device")
        return DeviceChoice(DeviceSpec("emulator", options.target, options.arch), reason, bindings), devices
    check_support(options, "cuda")
    facts = _probe(cluster, list(dict.fromkeys(spec.node for spec in specs)))
    gpu = _one_type(facts, "" if which == "all" else which)
    sanitizer = next((one.sanitizer for one in facts), "") if all(one.sanitizer for one in facts) else ""
    devices = ClusterDevices(cluster, on_gpu=True, gpu=gpu, sanitizer=sanitizer)
    bindings = tuple(GpuBinding(spec.label) for spec in specs)
    return DeviceChoice(DeviceSpec("cuda", options.target, options.arch), "", bindings, gpu), devices


def _probe(cluster: Cluster, nodes: list[Node]) -> list[HostFacts]:
    """Asks each node with GPUs for the facts of its first free one; nodes whose GPUs are all in use do not answer.

    Raises:
        UsageError: No node answers.
    """
    hosts = [cluster.start(HostSpec(node, "device", 0, 1, (), 0, _PROBE_GPUS)) for node in nodes]
    waiting: list[Future[HostFacts]] = [host.facts() for host in hosts]
    found: list[HostFacts] = []
    reasons: list[str] = []
    for node, one in zip(nodes, waiting, strict=True):
        try:
            found.append(one.result(_PROBE_S if not found else 1.0))
        except FutureTimeoutError:
            reasons.append(f"{node.name}: its GPUs are in use")
        except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
            reasons.append(f"{node.name}: {type(error).__name__}")
    for host in hosts:
        host.kill()
    if not any(facts.gpu is not None for facts in found):
        raise UsageError(f"no GPU of the cluster can be used: {'; '.join(reasons) or 'CUDA sees none on its nodes'}")
    return [facts for facts in found if facts.gpu is not None]


def _one_type(facts: list[HostFacts], wanted: str) -> Gpu:
    """Returns a GPU of the type that is searched on: times of different types are never compared.

    Raises:
        UsageError: The cluster has several types, or none of that name.
    """
    gpus = [one.gpu for one in facts if one.gpu is not None and wanted.lower() in one.gpu.name.lower()]
    types = {type_of(gpu): gpu for gpu in gpus}
    if len(types) == 1:
        return gpus[0]
    names = ", ".join(sorted({described(one.gpu) for one in facts if one.gpu is not None}))
    if types:
        raise UsageError(f"the cluster has GPUs of several types, {names}: choose one, as in --device cuda:H200")
    raise UsageError(f"the cluster has no GPU named '{wanted}': it has {names}")
