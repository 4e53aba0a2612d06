"""The plan of a search: what is known about it before its first candidate, from its options and its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evoengine.costmodel.latency import METHOD
from evoengine.device.protocols import StopwatchOptions
from evoengine.engine.devices.choice import DeviceChoice, choose_device
from evoengine.engine.devices.facts import describe_device, known_gpu
from evoengine.engine.devices.memory import check_memory
from evoengine.engine.devices.replay import Replay, open_replay
from evoengine.engine.families import AUTO, Families, choose_families, own_spaces, serving_all, wanted_spaces
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.priors import Priors
from evoengine.errors import UsageError
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import ACCEPT_THRESHOLD, DEFAULT_PROBLEM, NAMED_PROBLEMS, Config, DeviceInfo, Problem, Variant
from evoengine.search.forecast.choice import Forecast, forecasts_for
from evoengine.search.strategies.registry import check_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import Target, target_for_gpu

if TYPE_CHECKING:
    from evoengine.engine.cluster.cluster import Cluster
    from evoengine.engine.cluster.search import ClusterDevices


@dataclass(frozen=True)
class SearchPlan:
    """Everything that is known about a search before its first candidate."""

    request: SearchOptions
    choice: DeviceChoice
    device: DeviceInfo
    target: Target | None
    """The GPU and the architecture to compile for; None in a replay, where nothing is compiled."""
    families: Families
    replay: Replay | None = None
    cluster: ClusterDevices | None = None
    """Devices of a cluster; None for those of this machine."""
    starts: tuple[Config, ...] = ()
    """Configs that are tried before all others."""

    @property
    def problem(self) -> Problem:
        return self.request.problem

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems that each candidate is built for."""
        workload = self.request.workload
        return (self.problem,) if workload is None else workload.problems

    @property
    def priors(self) -> Priors:
        """Prior knowledge that the search uses."""
        return Priors.of(self.request, self.choice.spec.kind)

    @property
    def method(self) -> str:
        """Name of the objective."""
        if self.replay is not None:
            return self.replay.landscape.method
        if self.device.predicted:
            assert self.target is not None
            return METHOD
        return StopwatchOptions(cold=self.request.cold_l2, eager=self.request.eager).method

    @property
    def accept_threshold(self) -> float:
        """Minimum relative speed-up needed to replace the champion.

        The default guards against noise, so it is 0 where there is none to guard against: predictions do not vary, and
        a replay serves to compare strategies.
        """
        if self.request.accept is not None:
            return self.request.accept
        return 0.0 if self.device.predicted or self.replay is not None else ACCEPT_THRESHOLD

    @property
    def elects_first(self) -> bool:
        """Whether the first champion is elected late in the search, among all candidates so far.

        On a GPU the threshold would bar faster rows from replacing an early one. On the emulator each early one would
        be inspected, which takes as long as some candidates. A replay inspects nothing and has no threshold by default.
        """
        return self.replay is None

    @property
    def study_key(self) -> StudyKey:
        """Identity of the study: the same request resumes it."""
        return StudyKey(
            problem=self.problem,
            family=self.families.name,
            device=self.device,
            method=self.method,
            strategy=self.request.strategy,
            seed=self.request.seed,
            space_key=self.families.key,
            workload=self.request.workload,
            own_spaces=() if self.replay is not None else own_spaces(self.families),
        )

    @property
    def forecasts(self) -> Mapping[str, Forecast]:
        """Forecasts of the latency model by family; in a replay for the recorded GPU, if it has a data sheet."""
        spaces = [family.space for family in self.families.taken]
        target = self.target
        if self.replay is not None:
            recorded = self.replay.landscape.device
            target = target_for_gpu(recorded.name)
            target = target and target.compiled_for(recorded.arch)
            shipped = {space.family: space for space in wanted_spaces(AUTO, None)}
            spaces = [
                shipped[space.family]
                for space in spaces
                if space.family in shipped and space.by_name.keys() <= shipped[space.family].by_name.keys()
            ]
        return {} if target is None else forecasts_for(spaces, self.problem, target)

    @property
    def valid(self) -> FamilySpaces:
        """The valid configs of all families."""
        return FamilySpaces(tuple(family.valid for family in self.families.taken))


def make_plan(request: SearchOptions, cluster: Cluster | None = None, variants: Sequence[Variant] = ()) -> SearchPlan:
    """Describes the device and builds the valid spaces.

    Args:
        request: Options of the search.
        cluster: Cluster to run on; None for this machine.
        variants: Variants of families that ``request.family`` may name, besides those that it allows itself.

    Raises:
        UsageError: An option of the request is invalid, or options contradict each other.
        ProblemError: No family supports the problem, or it does not fit in the memory of this machine or of its GPU.
        SearchSpaceError: A search space is malformed or has no valid config.
        TemplateError: A template is malformed.
        MissingDependencyError: The device needs a package or a driver that is missing.
    """
    check_strategy(request.strategy)
    choice, devices = _choose(request, cluster)
    if choice.spec.kind == "replay":
        replay = open_replay(choice.spec.replay)
        found = replace(request, problem=replay.problem(request.problem, NAMED_PROBLEMS[DEFAULT_PROBLEM]))
        device = replay.device_with(Priors.of(request, "replay").on)
        return SearchPlan(found, choice, device, None, replay.families(request.family), replay)
    variants = (*variants, *_stored_variants(request))
    spaces = wanted_spaces(request.family, request.space_file, variants)
    device, gpu = _describe(choice, devices)
    target = gpu.compiled_for(device.arch)
    families = choose_families(spaces, request.problem, target, variants)
    if request.workload is not None:
        families = serving_all(families, request.workload, target)
    plan = SearchPlan(request, choice, device, target, families, cluster=devices)
    check_memory(plan.problems, choice, target)
    return plan


def _stored_variants(request: SearchOptions) -> tuple[Variant, ...]:
    """Returns the variants in the leaderboard if the request allows them; their patches are from its author."""
    if not request.variants:
        return ()
    with Leaderboard(database_url(request.db), create=False) as board:
        return tuple(one.variant for one in board.variants.all())


def _choose(request: SearchOptions, cluster: Cluster | None) -> tuple[DeviceChoice, ClusterDevices | None]:
    if cluster is None:
        return choose_device(request), None
    from evoengine.engine.cluster.search import choose_on_cluster

    return choose_on_cluster(request, cluster)


def _describe(choice: DeviceChoice, devices: ClusterDevices | None) -> tuple[DeviceInfo, Target]:
    if devices is None or devices.gpu is None:
        return describe_device(choice)
    known = known_gpu(choice.spec, devices.gpu, here=False)
    if known is None:
        raise UsageError(f"{devices.gpu.name} is in no data sheet, or older than --arch: search on its own machine")
    info, target = known
    return replace(info, nvrtc=nvrtc_version(), pci_bus_id="", uuid=""), target
