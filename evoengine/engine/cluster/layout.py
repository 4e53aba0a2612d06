"""Layout of a search on a cluster: the actors that it starts on each node, and the cores that they use.

Several coordinators can share a cluster: each takes one of several equal parts of its devices, with that share of the
compilers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Role = Literal["device", "compile"]

_CORES_PER_GPU: Final = 2
"""Cores reserved per GPU: one for the process that times kernels, one for its helpers."""


@dataclass(frozen=True)
class Node:
    """One machine of a cluster."""

    id: str
    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class HostSpec:
    """One actor: its node, its part of it, and the number of its workers."""

    node: Node
    role: Role
    number: int
    """Number among the actors of this role on the node."""
    size: int
    cores: tuple[int, ...]
    """Cores of the node that its processes use; empty for all."""
    num_cpus: float
    num_gpus: float

    @property
    def label(self) -> str:
        """Name for messages."""
        what = {"device": "device worker", "compile": "compile workers"}[self.role]
        return f"{what} {self.number} on {self.node.name}" if self.role == "device" else f"{what} on {self.node.name}"


@dataclass(frozen=True)
class Part:
    """One of several equal parts of a cluster."""

    number: int
    """Number of the part, from 0."""
    count: int

    def share(self, total: int) -> range:
        """Returns the indices of this part among ``total`` items; the parts are disjoint and cover all items."""
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)


WHOLE: Final = Part(0, 1)


def plan_hosts(nodes: Sequence[Node], role: Role, *, on_gpu: bool, part: Part = WHOLE) -> tuple[HostSpec, ...]:
    """Plans the actors of a role.

    Every GPU has an actor with cores of its own, so that compilation on its host does not disturb its timing. Emulated
    devices share the cores with the compilers, one of each per core, as on one machine.

    Args:
        nodes: Nodes of the cluster; those without CPUs run nothing.
        role: Role of the actors.
        on_gpu: Whether candidates run on GPUs.
        part: Part of the cluster to use.
    """
    usable = [node for node in nodes if node.cpus]
    shares = _shares(usable, part, on_gpu=on_gpu)
    if not on_gpu:
        plans = zip(usable, shares, strict=True)
        return tuple(HostSpec(node, role, 0, len(own), (), len(own) / 2, 0) for node, own in plans if own)
    return tuple(spec for node, own in zip(usable, shares, strict=True) for spec in _beside_gpus(node, role, own, part))


def _shares(nodes: Sequence[Node], part: Part, *, on_gpu: bool) -> Iterator[range]:
    """Yields the indices of a part's devices on each node; counted over all nodes, the devices are consecutive."""
    sizes = [node.gpus if on_gpu else node.cpus for node in nodes]
    wanted = part.share(sum(sizes))
    first = 0
    for size in sizes:
        low, high = (min(max(edge - first, 0), size) for edge in (wanted.start, wanted.stop))
        yield range(low, high)
        first += size


def _beside_gpus(node: Node, role: Role, own: range, part: Part) -> Iterator[HostSpec]:
    """Yields the actors on a node whose GPUs ``own`` belong to the part."""
    each = _CORES_PER_GPU if node.cpus > _CORES_PER_GPU * node.gpus else node.cpus // (node.gpus + 1)
    if role == "device":
        for number in own:
            yield HostSpec(node, role, number, 1, tuple(range(number * each, (number + 1) * each)), each, 1)
        return
    others = range(node.gpus * each, node.cpus)
    taken = part.share(len(others))
    if node.gpus:  # compilers stay with their GPUs, so that a part on few nodes sends little
        taken = range(len(others) * own.start // node.gpus, len(others) * own.stop // node.gpus)
    cores = tuple(others[core] for core in taken)
    if cores:
        yield HostSpec(node, role, 0, len(cores), cores, len(cores), 0)
