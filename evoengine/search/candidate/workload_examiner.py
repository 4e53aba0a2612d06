"""A workload's examiner: one kernel config on several problems, each judged and timed by itself, as one objective.

The objective is the weighted mean of the times. It has samples of its own: the weighted mean of the first samples of
all problems, of the second ones, and so on, so that its confidence interval and its duels are computed as any other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.bench.baseline import BaselineRow
from evoengine.errors import LaunchError
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Kernel
from evoengine.model import DeviceInfo, Duel, PartTime, Problem, Status, Telemetry, Timing, Verdict, Workload
from evoengine.search.candidate.evaluate import Examination, Examiner, Setup, open_device
from evoengine.search.candidate.inspection import Inspection
from evoengine.statistics import median_interval
from evoengine.target import Target

_T = TypeVar("_T")


def prepare_workload(workload: Workload, prepare_one: Callable[[Problem], Setup]) -> Setup:
    """The setup of a workload: that of its first problem, which holds those of the others.

    Args:
        workload: problems and weights.
        prepare_one: makes the setup of one problem; all must get the same seed of inputs.
    """
    shares = workload.shares
    first, *others = (
        replace(prepare_one(problem), share=share) for problem, share in zip(workload.problems, shares, strict=True)
    )
    return replace(first, others=tuple(others))


class WorkloadExaminer:
    """An :class:`~evoengine.search.candidate.evaluate.Examiner` of all problems of a workload on one device.

    Args:
        setup: of the first problem, with those of the others in it.
    """

    def __init__(self, setup: Setup) -> None:
        device = open_device(setup.device)
        setups = (replace(setup, others=()), *setup.others)
        self._examiners = tuple(Examiner(one, device) for one in setups)
        self._problems = tuple(one.problem for one in setups)
        self._shares = tuple(one.share for one in setups)
        self._threshold = setup.threshold

    def open(self, known_baseline: str) -> str:
        """Captures the baseline of each problem; see :meth:`Examiner.open`. The names stand in one text."""
        known = known_baseline.split(",") if known_baseline else [""] * len(self._examiners)
        names = [examiner.open(name) for examiner, name in zip(self._examiners, known, strict=True)]
        return ",".join(names) if all(names) else ""

    def check(self) -> None:
        """Runs the known-good kernel; see :meth:`Examiner.check`."""
        self._examiners[0].check()

    @property
    def info(self) -> DeviceInfo:
        """The device that is examined on."""
        return self._examiners[0].info

    @property
    def healthy(self) -> bool:
        """False once the device is lost to this process."""
        return self._examiners[0].healthy

    def describe(self) -> tuple[DeviceInfo, Target]:
        """Facts about the device."""
        return self._examiners[0].describe()

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Every SDPA backend on the first problem's inputs."""
        return self._examiners[0].baselines()

    def examine(self, kernel: Kernel, champion_us: float | None = None) -> Examination:
        """Parity gate, timing and recheck on every problem; the first that fails ends it.

        Nothing is dropped half-way: how slow a kernel is on one problem says too little about the others.

        Args:
            kernel: the candidate, with its kernels for the further problems.
            champion_us: best joint time so far; does not matter here.
        """
        parts: list[Examination] = []
        for examiner, problem, one in self._each(kernel):
            part = examiner.examine(one)
            parts.append(part)
            if part.status is not Status.OK:
                return replace(part, reason=f"{problem.key}: {part.reason}", timing=None, stage_seconds=_seconds(parts))
        verdict = _joint_verdict(self._problems, [_there(part.verdict) for part in parts])
        timing = joint_timing(self._problems, self._shares, [_there(part.timing) for part in parts])
        notes = tuple(
            f"{problem.key}: {note}" for problem, part in zip(self._problems, parts, strict=True) for note in part.notes
        )
        return Examination(Status.OK, "", verdict, timing, _seconds(parts), notes)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Duel:
        """Fresh interleaved pairs on every problem; the first pairs of all make the first joint pair, and so on.

        Raises:
            CandidateError: one of them failed this time.
        """
        pairs = zip(self._each(challenger), self._each(champion), strict=True)
        duels = [examiner.challenge(ours, theirs) for (examiner, _, ours), (_, _, theirs) in pairs]
        ours = _means(self._shares, [duel.challenger_us for duel in duels])
        theirs = _means(self._shares, [duel.champion_us for duel in duels])
        if self.info.predicted:
            return judge_predictions(ours[0], theirs[0], self._threshold)
        telemetry = _joint_telemetry([duel.telemetry for duel in duels])
        return replace(judge_duel(ours, theirs, self._threshold), telemetry=telemetry)

    def inspect(self, kernel: Kernel) -> Inspection:
        """Looks at a kernel that is to be champion, for every problem; see :meth:`Examiner.inspect`.

        Raises:
            DefectError: the gate passed a no-op in its place.
            CandidateError: it failed this time.
        """
        found = Inspection()
        for examiner, _, one in self._each(kernel):
            found = found.joined(examiner.inspect(one))
        return found

    def stand_by(self) -> None:
        """Starts compute-sanitizer for the first problem; see :meth:`Examiner.stand_by`."""
        self._examiners[0].stand_by()

    def sanitize(self, kernel: Kernel) -> Inspection:
        """Has compute-sanitizer look at it, for every problem; see :meth:`Examiner.sanitize`."""
        found = Inspection()
        for examiner, _, one in self._each(kernel):
            found = found.joined(examiner.sanitize(one))
        return found

    def energy(self, kernel: Kernel) -> float | None:
        """Weighted mean of the microjoules per call; None where one of them cannot be known.

        Raises:
            CandidateError: it failed this time.
        """
        each = [examiner.energy(one) for examiner, _, one in self._each(kernel)]
        known = [energy_uj for energy_uj in each if energy_uj is not None]
        return sum(map(_times, self._shares, known)) if len(known) == len(each) else None

    def close(self) -> None:
        """Releases baselines and device."""
        for examiner in self._examiners:
            examiner.close()

    def _each(self, kernel: Kernel) -> list[tuple[Examiner, Problem, Kernel]]:
        kernels = (replace(kernel, others=()), *kernel.others)
        if len(kernels) != len(self._examiners):
            raise LaunchError(
                f"a kernel for {len(kernels)} problems, not for the {len(self._examiners)} of the workload"
            )
        return list(zip(self._examiners, self._problems, kernels, strict=True))


def joint_timing(problems: Sequence[Problem], shares: Sequence[float], timings: Sequence[Timing]) -> Timing:
    """The weighted mean of several timings of one method.

    Args:
        problems: what was timed.
        shares: weights that sum up to 1.
        timings: one per problem, all measured or all predicted.
    """
    parts = tuple(
        PartTime(problem.key, share, t.median_us, t.low_us, t.high_us, t.baseline_us, t.baseline)
        for problem, share, t in zip(problems, shares, timings, strict=True)
    )
    first = timings[0]
    baselines = [timing.baseline_us for timing in timings if timing.baseline_us is not None]
    complete = len(baselines) == len(timings)
    names = dict.fromkeys(timing.baseline for timing in timings if timing.baseline)
    joint = replace(
        first,
        baseline_us=sum(map(_times, shares, baselines)) if complete else None,
        baseline=", ".join(names) if complete else "",
        telemetry=_joint_telemetry([timing.telemetry for timing in timings]),
        parts=parts,
    )
    if first.predicted:
        us = sum(map(_times, shares, (timing.median_us for timing in timings)))
        return replace(joint, median_us=us, low_us=us, high_us=us)
    samples = _means(shares, [timing.samples_us for timing in timings])
    interval = median_interval(samples)
    return replace(joint, median_us=interval.median, low_us=interval.low, high_us=interval.high, samples_us=samples)


def _means(shares: Sequence[float], columns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(map(_times, shares, row)) for row in zip(*columns, strict=True))


def _times(share: float, value: float) -> float:
    return share * value


def _there(value: _T | None) -> _T:
    assert value is not None, "an examination that is ok has a verdict and a time"
    return value


def _joint_verdict(problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> Verdict:
    """The one that came closest to its tolerance; its worst case is named with its problem."""
    worst = max(range(len(verdicts)), key=lambda index: _closeness(verdicts[index]))
    verdict = verdicts[worst]
    case = f"{problems[worst].key}: {verdict.worst_case}"
    return replace(verdict, cases=sum(one.cases for one in verdicts), worst_case=case)


def _closeness(verdict: Verdict) -> float:
    return verdict.max_error / verdict.tolerance if verdict.tolerance else 0.0


def _joint_telemetry(each: Sequence[Telemetry | None]) -> Telemetry | None:
    known = [telemetry for telemetry in each if telemetry is not None]
    if not known:
        return None
    return Telemetry(
        before=known[0].before,
        after=known[-1].after,
        discarded=sum(telemetry.discarded for telemetry in known),
        throttled=any(telemetry.throttled for telemetry in known),
        missing=known[0].missing,
        gpu=known[0].gpu,
    )


def _seconds(parts: Sequence[Examination]) -> Mapping[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.stage_seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def examine_service(setup: Setup) -> Examiner | WorkloadExaminer:
    """The examiner of a device worker, whose process does nothing else."""
    if setup.device.kind == "emulator":  # whose arrays are as large as what a compiler takes, and as short-lived
        keep_freed_memory()
    return WorkloadExaminer(setup) if setup.others else Examiner(setup)
