"""The replay service: jobs of a search are answered from a recorded landscape instead of a compiler and a GPU.

A landscape holds no kernels, so a replay is no :class:`~evoengine.device.protocols.Device`: nothing is compiled or run.
Each recorded config was compiled, checked and timed when it was recorded. All results are available at once.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.kernel.records import Binary, LaunchSpec, Source
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.noise import Noise
from evoengine.model import ACCEPT_THRESHOLD, Config, DeviceInfo, Duel, Evaluation, Status, Timing
from evoengine.search.candidate.jobs import Challenge, Compile, Examine, Inspect, Job, ResultT, perform
from evoengine.search.candidate.results import Candidate, Compilation, Examination, Inspection

STAGE: Final = "replay"
"""The one stage of a replayed candidate; the time of the recorded compilation is not spent again."""
PAIRS: Final = 20
"""Fresh pairs of a duel, as on a GPU."""

_JOBS: Final = frozenset((Compile, Examine, Challenge, Inspect))
_NEVER_COMPILED: Final = frozenset((Status.INVALID_CONFIG, Status.RENDER_FAILED, Status.COMPILE_FAILED))
_NO_LAUNCH: Final = LaunchSpec(("1", "1", "1"), 0, 0, ())


def replay_info(landscape: Landscape, noise: Noise) -> DeviceInfo:
    """Returns the device to store with each replayed row: another landscape, or other noise, is another device."""
    recorded = landscape.device
    name = f"{recorded.name}, landscape {landscape.key}"
    return replace(recorded, kind="replay", name=name if noise.quiet else f"{name}, {noise}")


class ReplayService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that looks results up in a landscape and adds noise.

    Args:
        landscape: Recorded results.
        noise: Noise to add to each time; None for none.
        threshold: Minimum relative speed-up needed to replace the champion.
        measured_before: Candidates of earlier runs of the study, which set the phase of the drift approximately.
    """

    workers = 1
    lost: tuple[str, ...] = ()

    def __init__(
        self,
        landscape: Landscape,
        noise: Noise | None = None,
        threshold: float = ACCEPT_THRESHOLD,
        measured_before: int = 0,
    ) -> None:
        self._landscape = landscape
        self._noise = noise or Noise()
        self._threshold = threshold
        self._when = float(measured_before)
        self._duels = 0

    def supports(self, kind: type[Job[Any]]) -> bool:
        return kind in _JOBS

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        future.set_result(perform(self, job))
        return future

    def build(self, config: Config) -> Compilation:
        """Returns the recorded outcome of the compilation."""
        start_s = time.perf_counter()
        recorded = self._landscape.by_config[config]
        source = Source(config, "", "", recorded.template_hash, 0, _NO_LAUNCH)
        binaries = self._binaries(recorded)
        stopped = recorded.status in _NEVER_COMPILED or not binaries
        status, reason = (recorded.status, recorded.reason) if stopped else (Status.OK, "")
        return Compilation(config, status, reason, (source,), binaries, {STAGE: time.perf_counter() - start_s})

    def _binaries(self, recorded: Evaluation) -> tuple[Binary, ...]:
        """A binary without code, which has what the search reads; empty when the config never compiled."""
        if recorded.status in _NEVER_COMPILED or recorded.resources is None:
            return ()
        return (Binary(self._landscape.device.arch, b"", "", recorded.code_hash, recorded.resources, ""),)

    def examine(self, candidate: Candidate, champion_us: float | None) -> Examination:
        """Returns the recorded outcome of the examination, with noise on its time."""
        recorded = self._landscape.by_config[candidate.config]
        self._when += 1
        timing = None if recorded.timing is None else self._measured(recorded.timing, candidate.config)
        return Examination(recorded.status, recorded.reason, None, timing, {})

    def challenge(self, challenger: Candidate, champion: Candidate) -> Duel:
        """Draws fresh pairs: each time has its own noise, both times of a pair have the same drift."""
        ours, theirs = (self._time_us(candidate.config) for candidate in (challenger, champion))
        if self._landscape.device.predicted:
            return judge_predictions(ours, theirs, self._threshold)
        self._duels += 1
        scatter = self._noise.scatter(2 * PAIRS, challenger.config.key, champion.config.key, str(self._duels))
        drift = [self._noise.drifted(self._when + pair / PAIRS) for pair in range(PAIRS)]
        self._when += 1
        pairs = [
            (ours * drift[pair] * scatter[2 * pair], theirs * drift[pair] * scatter[2 * pair + 1])
            for pair in range(PAIRS)
        ]
        return judge_duel([a for a, _ in pairs], [b for _, b in pairs], self._threshold)

    def inspect(self, candidate: Candidate) -> Inspection:
        """Finds nothing: the kernel was checked when the landscape was recorded."""
        return Inspection()

    def _measured(self, timing: Timing, config: Config) -> Timing:
        if self._noise.quiet:
            return timing
        factor = float(self._noise.scatter(1, config.key)[0]) * self._noise.drifted(self._when)
        spread = 1 + self._noise.sigma
        return replace(
            timing,
            median_us=timing.median_us * factor,
            low_us=timing.low_us * factor / spread,
            high_us=timing.high_us * factor * spread,
        )

    def _time_us(self, config: Config) -> float:
        timing = self._landscape.by_config[config].timing
        assert timing is not None, "only timed kernels take part in a duel"
        return timing.median_us
