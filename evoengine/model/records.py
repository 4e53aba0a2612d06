"""Records of candidates: config, provenance, resources, verdict, timing, evaluation and duel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from evoengine.errors import Status
from evoengine.model.telemetry import Telemetry

Value = int | str | bool
"""Value of a tunable."""


@dataclass(frozen=True)
class Config:
    """One complete, immutable assignment of a family's tunables, sorted by tunable name."""

    family: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, family: str, values: Mapping[str, Value]) -> Config:
        """Builds a config in canonical form, with sorted names."""
        return cls(family, tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.values:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.values)

    def as_dict(self) -> dict[str, Value]:
        """Returns the values as a new dict, in name order."""
        return dict(self.values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Config], tuple[str, tuple[tuple[str, Value], ...]]]:
        return Config, (self.family, self.values)  # without the cached hash, which differs between processes

    @cached_property
    def _hash(self) -> int:
        """Cached, because a search looks up a config some hundred times."""
        return hash((self.family, self.values))

    @cached_property
    def key(self) -> str:
        """Identity of the config: 16 hex digits of the SHA-256 of its canonical JSON."""
        text = json.dumps([self.family, self.as_dict()], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


@dataclass(frozen=True)
class Provenance:
    """How a strategy derived a config."""

    move: str
    """The strategy's name of the move: ``start``, ``crossover``, ``one change`` …"""
    parents: tuple[str, ...] = ()
    """:attr:`Config.key` of each parent, all evaluated earlier in the same study; the most similar parent first."""


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel, as reported by ptxas and the launch plan."""

    registers: int
    """Registers per thread."""
    spill_bytes: int
    """Bytes of spill stores and spill loads per thread."""
    stack_bytes: int
    static_smem_bytes: int
    dynamic_smem_bytes: int
    threads: int
    """Threads per CTA."""

    @property
    def smem_bytes(self) -> int:
        """Shared memory per CTA, static and dynamic."""
        return self.static_smem_bytes + self.dynamic_smem_bytes


@dataclass(frozen=True)
class Verdict:
    """Outcome of the parity gate."""

    passed: bool
    max_error: float
    """Largest absolute error against the fp64 reference in the last case that ran: normal inputs, or the case that
    failed. Cases differ in the magnitude of their values."""
    tolerance: float
    """Bound on ``max_error`` in that case."""
    relative_l2: float
    """Largest ‖out − ref‖₂ / ‖ref‖₂ of a head in that case."""
    cases: int
    """Number of cases that ran."""
    worst_case: str
    """Name of the case that failed, or else of the one with the largest ratio of error to tolerance."""
    reason: str = ""
    """Why the gate failed; empty if it passed."""
    inputs_seed: int | None = None
    """Seed of the pool of cases; together with the source hash it reproduces the cases."""


@dataclass(frozen=True)
class PartTime:
    """Time of one problem of a workload."""

    problem: str
    """Key of the problem."""
    share: float
    """Normalised weight; those of all parts sum to 1."""
    median_us: float
    low_us: float
    high_us: float
    baseline_us: float | None = None
    baseline: str = ""


@dataclass(frozen=True)
class Timing:
    """The objective of one candidate: device time per call, measured or predicted."""

    median_us: float
    low_us: float
    """Lower end of the 95 % confidence interval of the median."""
    high_us: float
    predicted: bool
    method: str
    """Name of the objective: ``graph-warm``, ``graph-cold``, ``eager-warm``, ``eager-cold`` or ``model-v18``."""
    samples_us: tuple[float, ...] = ()
    baseline_us: float | None = None
    """Median time of the baseline, interleaved in the same run; None if none was measured."""
    baseline: str = ""
    """SDPA backend used as baseline."""
    telemetry: Telemetry | None = None
    """GPU readings during the measurement; None for predictions and for rows stored before they were recorded."""
    energy_uj: float | None = None
    """Energy of the whole GPU per call in microjoules, over a loop of replays; None if not measured."""
    parts: tuple[PartTime, ...] = ()
    """Time of each problem of a workload; the other fields are then weighted means."""

    @property
    def speedup(self) -> float | None:
        """Baseline time over candidate time: above 1 the candidate is faster."""
        return None if self.baseline_us is None else self.baseline_us / self.median_us


@dataclass(frozen=True)
class DeviceInfo:
    """Device on which binaries run, as stored with each row."""

    kind: str
    """``cuda``, ``emulator`` or ``replay``."""
    name: str
    """GPU name as reported by the driver; for predictions, the name of the target."""
    arch: str
    """Architecture for which candidates are compiled: ``sm_89``."""
    predicted: bool
    driver: str = ""
    """CUDA driver version; empty without a GPU."""
    nvrtc: str = ""
    pci_bus_id: str = ""
    """PCI address of the GPU on this machine: ``0000:3B:00.0``; not stored, and not part of a row's identity."""
    uuid: str = ""
    """UUID of the GPU: ``GPU-…``; stored with each measurement (:class:`Telemetry`), not part of a row's identity."""


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating one candidate: one row of the leaderboard."""

    config: Config
    status: Status
    reason: str = ""
    source_hash: str = ""
    code_hash: str = ""
    """Hash of the machine code: configs with equal code hashes are the same kernel."""
    template_hash: str = ""
    source: str = ""
    resources: Resources | None = None
    verdict: Verdict | None = None
    timing: Timing | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage: render, compile, admit, load, parity, bench, recheck; in a replay only replay."""
    duplicate_of: str = ""
    """For DUPLICATE: config key of the first candidate with the same machine code."""
    notes: tuple[str, ...] = ()
    """Remarks that did not affect the status, one line each."""

    @property
    def ok(self) -> bool:
        """Whether the candidate is correct and fully timed, so that it is ranked."""
        return self.status is Status.OK

    @property
    def value_us(self) -> float | None:
        """Time reported to the strategy: the median, also for a pruned candidate; None for a failed one."""
        if self.timing is None or self.status not in (Status.OK, Status.PRUNED):
            return None
        return self.timing.median_us

    def failed(self, status: Status, reason: str) -> Evaluation:
        """Returns a copy with a final status and its reason."""
        return replace(self, status=status, reason=reason)


def executed_by_config(evaluations: Iterable[Evaluation]) -> dict[str, Evaluation]:
    """Returns by config key the evaluation in which the config's kernel was executed.

    For a duplicate, this is the evaluation of the first candidate with the same machine code; a duplicate is missing if
    that is not among ``evaluations``.
    """
    own = {evaluation.config.key: evaluation for evaluation in evaluations}
    first = {key: own.get(one.duplicate_of) if one.duplicate_of else one for key, one in own.items()}
    return {key: one for key, one in first.items() if one is not None}


ACCEPT_THRESHOLD: Final = 0.03
"""Default of the gain that a challenger needs: at least 3 % less time."""


@dataclass(frozen=True)
class Duel:
    """Result of one challenge: fresh interleaved pairs of challenger and champion times.

    For predicted rows there is a single pair, and ``low_gain`` equals ``gain``.
    """

    challenger_us: tuple[float, ...]
    champion_us: tuple[float, ...]
    gain: float
    """1 − challenger/champion, from the geometric mean of the paired ratios; 0.03 is 3 % less time."""
    low_gain: float
    """One-sided 95 % lower confidence bound of the gain."""
    threshold: float
    accepted: bool
    telemetry: Telemetry | None = None
    """GPU readings during the duel; None for predictions and for duels stored before they were recorded."""
