"""The replay device: both services of a search, answered from a landscape instead of by a compiler and a GPU.

It has no kernels, so it is no :class:`~evoengine.device.protocols.Device`: nothing is compiled, checked or run here. What
the landscape says of a config was compiled, checked and timed when it was recorded. All answers are there at once.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, TypeVar

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.kernel.records import Binary, Kernel, LaunchSpec, Source
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.noise import Noise
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Status, Timing
from evoengine.search.candidate.evaluate import Compilation, Examination
from evoengine.search.candidate.inspection import Inspection

STAGE: Final = "replay"
"""The one stage of a replayed candidate; what its compilation once took is not spent again."""
PAIRS: Final = 20
"""Fresh pairs of a duel, as on a GPU."""

_NEVER_COMPILED: Final = frozenset((Status.INVALID_CONFIG, Status.RENDER_FAILED, Status.COMPILE_FAILED))
_T = TypeVar("_T")

_NO_LAUNCH: Final = LaunchSpec(("1", "1", "1"), 0, 0, ())


def replay_info(landscape: Landscape, noise: Noise) -> DeviceInfo:
    """The device as stored with each replayed row: another landscape, or other noise, is another device."""
    recorded = landscape.device
    name = f"{recorded.name}, landscape {landscape.key}"
    return replace(recorded, kind="replay", name=name if noise.quiet else f"{name}, {noise}")


class ReplayCompiler:
    """A :class:`~evoengine.search.candidate.services.CompileService` that looks a config up.

    Args:
        landscape: what is known.
    """

    workers = 1
    lost: tuple[str, ...] = ()

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape

    def submit(self, config: Config) -> Future[Compilation]:
        """How the recorded compilation ended."""
        start_s = time.perf_counter()
        recorded = self._landscape.by_config[config]
        source = Source(config, "", "", recorded.template_hash, 0, _NO_LAUNCH)
        binary = self._binary(recorded)
        stopped = recorded.status in _NEVER_COMPILED or binary is None
        status, reason = (recorded.status, recorded.reason) if stopped else (Status.OK, "")
        return _done(Compilation(config, status, reason, source, binary, {STAGE: time.perf_counter() - start_s}))

    def _binary(self, recorded: Evaluation) -> Binary | None:
        """A binary without code: only what the loop looks at."""
        if recorded.status in _NEVER_COMPILED or recorded.resources is None:
            return None
        return Binary(self._landscape.device.arch, b"", "", recorded.code_hash, recorded.resources, "")


class ReplayExaminer:
    """An :class:`~evoengine.search.candidate.services.ExamineService` that looks a kernel up, and adds noise.

    Args:
        landscape: what is known.
        noise: what is added to each time.
        threshold: gain that a challenger needs.
        measured_before: measurements of earlier runs of the study, so that the drift goes on where it was.
    """

    workers = 1
    lost: tuple[str, ...] = ()
    sanitizes = False

    def __init__(self, landscape: Landscape, noise: Noise, threshold: float, measured_before: int = 0) -> None:
        self._landscape = landscape
        self._noise = noise
        self._threshold = threshold
        self._when = float(measured_before)
        self._duels = 0

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Examination]:
        """How the recorded examination ended; the time with its noise."""
        recorded = self._landscape.by_config[kernel.config]
        self._when += 1
        timing = None if recorded.timing is None else self._measured(recorded.timing, kernel.config)
        return _done(Examination(recorded.status, recorded.reason, None, timing, {}))

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Fresh pairs: each time with noise of its own, both times of a pair with the same drift."""
        ours, theirs = (self._time_us(kernel.config) for kernel in (challenger, champion))
        if self._landscape.device.predicted:
            return _done(judge_predictions(ours, theirs, self._threshold))
        self._duels += 1
        scatter = self._noise.scatter(2 * PAIRS, challenger.config.key, champion.config.key, str(self._duels))
        drift = [self._noise.drifted(self._when + pair / PAIRS) for pair in range(PAIRS)]
        self._when += 1
        pairs = [
            (ours * drift[pair] * scatter[2 * pair], theirs * drift[pair] * scatter[2 * pair + 1])
            for pair in range(PAIRS)
        ]
        return _done(judge_duel([a for a, _ in pairs], [b for _, b in pairs], self._threshold))

    def inspect(self, kernel: Kernel) -> Future[Inspection]:
        """There is no kernel to look at: it was checked when the landscape was recorded."""
        return _done(Inspection())

    def stand_by(self) -> Future[None]:
        """There is nothing to get ready."""
        return _done(None)

    sanitize = inspect

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
        assert timing is not None, "only timed kernels meet in a duel"
        return timing.median_us


def _done(result: _T) -> Future[_T]:
    future: Future[_T] = Future()
    future.set_result(result)
    return future
