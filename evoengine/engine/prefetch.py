"""Prefetch: the processes of a search start right after its options are parsed and do all work that needs nothing else.

The start of a search on a GPU, in order; everything indented runs at the same time as what follows it:

1. :func:`early_imports`, before this process imports the search itself:
     the fork servers of compilers and device workers import; the preparer draws the inputs and computes their reference
     results; the forecaster imports.
2. :func:`~evoengine.engine.search_plan.make_plan`: device, families, valid configs.
3. :meth:`~evoengine.engine.session.Session.begin`:
     device workers fork, open their contexts and load the baseline's libraries, until the inputs arrive;
     compilers build the named starts; the forecaster chooses the forecast's configs, which other processes simulate.
4. :meth:`~evoengine.engine.session.Session.run`: the loop proposes the starts, and the forecast's configs once they are
   there. A candidate is examined as soon as its kernel and a device worker are ready.

The order of the proposals does not depend on which of these is ready first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.cluster.layout import WHOLE, Part
from evoengine.engine.devices.gpus import find_gpu
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.workers.modules import COMPILE_WORKER_NAME, COMPILER_MODULES, DEVICE_WORKER_NAME, device_modules
from evoengine.model import ACCEPT_THRESHOLD
from evoengine.system.temporary import sweep_temporary_folders

if TYPE_CHECKING:
    from evoengine.engine.cluster.cluster import Cluster
    from evoengine.search.candidate.device_spec import DeviceSpec
    from evoengine.search.candidate.setup import SetupRequest

_GPU_FILES: Final = ("/dev/nvidiactl", "/dev/dxg")
"""NVIDIA's driver for Linux, and WSL's."""
_PREPARER_MODULES: Final = ("evoengine.search.candidate.setup", "torch")
"""Modules that compute inputs and their reference results."""
_FORECASTER_MODULES: Final = ("evoengine.engine.workers.forecast",)
_EARLY_BYTES: Final = 2**29
"""Largest tensors of all problems whose inputs are drawn before it is known whether they fit in memory."""


@dataclass(frozen=True)
class EarlyImports:
    """Imports of workers under way. Each is closed by its pool, or when :func:`early_imports` ends."""

    compilers: HeadStart | None = None
    """None where nothing is compiled."""
    devices: HeadStart | None = None
    """None where there is no GPU."""
    preparer: SidecarProcess | None = None
    """Process that prepares the inputs; None where there is no GPU that would wait for them."""
    forecaster: SidecarProcess | None = None
    """Process that chooses the forecast's configs; None where there is no GPU that would wait for the loop."""
    cluster: Cluster | None = None
    """Cluster that the search runs on; None for this machine alone."""


def begin_imports(kind: str) -> HeadStart:
    """Starts the imports of a device's workers, before it is known what they examine.

    Args:
        kind: ``cuda`` or ``emulator``.
    """
    return HeadStart(DEVICE_WORKER_NAME, device_modules(kind))


@contextmanager
def early_imports(options: SearchOptions) -> Iterator[EarlyImports]:
    """Starts all processes whose work follows from the options alone, or connects to a cluster.

    Args:
        options: Options of the search; with ``--cluster`` the hosts import for themselves.
    """
    sweep_temporary_folders()
    if options.cluster:
        with cluster_alone(options.cluster) as imports:
            yield imports or EarlyImports()
        return
    kind = options.device.partition(":")[0]
    with ExitStack() as stack:
        devices = compilers = preparer = forecaster = None
        if kind in ("auto", "cuda") and _may_have_gpu():
            devices = stack.enter_context(closing(begin_imports("cuda")))
            arrays = Path(devices.folder)  # from there the device workers take the inputs
            preparer = stack.enter_context(closing(SidecarProcess("preparer", _PREPARER_MODULES, arrays)))
            forecaster = stack.enter_context(closing(SidecarProcess("forecaster", _FORECASTER_MODULES)))
        if kind != "replay":
            compilers = stack.enter_context(closing(HeadStart(COMPILE_WORKER_NAME, COMPILER_MODULES)))
        if preparer is not None:
            _begin_inputs(preparer, options)
        yield EarlyImports(compilers, devices, preparer, forecaster)


def setup_request(options: SearchOptions, device: DeviceSpec, threshold: float) -> SetupRequest:
    """Returns the request from which the setup of a search's device workers is prepared.

    Args:
        options: Options of the search.
        device: Device that candidates run on.
        threshold: Minimum relative speed-up needed to replace the champion.
    """
    from evoengine.search.candidate.setup import SetupRequest  # imports NumPy: late, for a fast start

    return SetupRequest(
        problem=options.workload or options.problem,
        device=device,
        inputs_seed=options.inputs_seed,
        cold=options.cold_l2,
        eager=options.eager,
        racing=options.racing,
        threshold=threshold,
    )


def _begin_inputs(preparer: SidecarProcess, options: SearchOptions) -> None:
    """Starts to draw the inputs for a GPU; the result is discarded if the later plan needs other inputs."""
    problems = (options.problem,) if options.workload is None else options.workload.problems
    if sum(problem.min_bytes for problem in problems) > _EARLY_BYTES:
        return
    from evoengine.search.candidate.device_spec import DeviceSpec

    threshold = ACCEPT_THRESHOLD if options.accept is None else options.accept
    preparer.begin(setup_request(options, DeviceSpec("cuda", options.target, options.arch), threshold))


@contextmanager
def cluster_alone(address: str, part: Part = WHOLE) -> Iterator[EarlyImports | None]:
    """Connects to a cluster without any imports, for one search or several in turn.

    Args:
        address: Value of ``--cluster``; None is yielded where it is empty.
        part: Part of the cluster to use.
    """
    if not address:
        yield None
        return
    from evoengine.engine.cluster.cluster import open_cluster

    with open_cluster(address, part) as cluster:
        yield EarlyImports(cluster=cluster)


def _may_have_gpu() -> bool:
    """Whether there may be a GPU. The driver's slow initialisation runs in a thread, while this process imports."""
    if not any(Path(place).exists() for place in _GPU_FILES):
        return find_gpu() is not None
    threading.Thread(target=find_gpu, daemon=True).start()
    return True
