"""What is known about candidates, from their configs to the outcome of their evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from evoengine.errors import Status
from evoengine.model.telemetry import Telemetry

Value = int | str | bool
"""What a tunable can hold."""


@dataclass(frozen=True)
class Config:
    """One full, immutable assignment of a family's tunables, hashable and ordered by tunable name."""

    family: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, family: str, values: Mapping[str, Value]) -> Config:
        """Builds the canonical form: names sorted."""
        return cls(family, tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.values:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.values)

    def as_dict(self) -> dict[str, Value]:
        """A fresh dict of the values, in name order."""
        return dict(self.values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Config], tuple[str, tuple[tuple[str, Value], ...]]]:
        return Config, (self.family, self.values)  # without the hash, which another process has another one of

    @cached_property
    def _hash(self) -> int:
        """Remembered: a search asks for it some hundred times, and it takes as long as all that is done with it."""
        return hash((self.family, self.values))

    @cached_property
    def key(self) -> str:
        """Identity of the config: 16 hex digits of SHA-256 over the canonical JSON."""
        text = json.dumps([self.family, self.as_dict()], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


@dataclass(frozen=True)
class Resources:
    """What ptxas and the launch plan say a kernel needs."""

    registers: int
    """Registers per thread."""
    spill_bytes: int
    """Bytes of spill stores plus spill loads per thread."""
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
    """Largest absolute error against the fp64 reference, in the last case that ran: the problem with normal inputs, or
    the case that failed. Cases differ in the size of their values."""
    tolerance: float
    """The bound on it there."""
    relative_l2: float
    """Largest ‖out − ref‖₂ / ‖ref‖₂ of a head, there."""
    cases: int
    """Cases that ran."""
    worst_case: str
    """Name of the case with the largest ratio of error to tolerance, or of the one that failed."""
    reason: str = ""
    """Why it failed; empty when passed."""
    inputs_seed: int | None = None
    """Seed of the pool that the cases were drawn from; with the source's hash it gives the same cases again."""


@dataclass(frozen=True)
class PartTime:
    """The time of one problem of a workload."""

    problem: str
    """Its key."""
    share: float
    """Its weight; those of all parts sum up to 1."""
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
    """Name of the objective: ``graph-warm``, ``graph-cold``, ``eager-warm``, ``eager-cold`` or ``model-v4``."""
    samples_us: tuple[float, ...] = ()
    baseline_us: float | None = None
    """Median of the baseline, interleaved in the same run; None where nothing could be measured."""
    baseline: str = ""
    """Which SDPA backend that was."""
    telemetry: Telemetry | None = None
    """The GPU meanwhile; None for predictions, and for rows of before it was recorded."""
    energy_uj: float | None = None
    """Energy of the whole GPU per call, in microjoules, over a loop of replays; None where it was not measured."""
    parts: tuple[PartTime, ...] = ()
    """Of a workload each problem's own time; the others are their weighted means."""

    @property
    def speedup(self) -> float | None:
        """Baseline over candidate: above 1 the candidate is faster."""
        return None if self.baseline_us is None else self.baseline_us / self.median_us


@dataclass(frozen=True)
class DeviceInfo:
    """Where binaries run, as stored with each row."""

    kind: str
    """``cuda``, ``emulator`` or ``replay``."""
    name: str
    """GPU name as the driver gives it; for predictions, the name of the target."""
    arch: str
    """Architecture that candidates are compiled for: ``sm_89``."""
    predicted: bool
    driver: str = ""
    """CUDA driver version; empty without a GPU."""
    nvrtc: str = ""
    pci_bus_id: str = ""
    """Which of the machine's GPUs it is: ``0000:3B:00.0``; not stored, and no part of a row's identity."""
    uuid: str = ""
    """Which GPU of all it is: ``GPU-…``; stored with each measurement (:class:`Telemetry`), and no part either."""


@dataclass(frozen=True)
class Evaluation:
    """Everything known about one evaluated candidate: one row of the store."""

    config: Config
    status: Status
    reason: str = ""
    source_hash: str = ""
    code_hash: str = ""
    """Hash of the machine code: two configs with one code hash are one kernel."""
    template_hash: str = ""
    source: str = ""
    resources: Resources | None = None
    verdict: Verdict | None = None
    timing: Timing | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by stage: render, compile, parity, bench."""
    duplicate_of: str = ""
    """Config key of the first candidate with the same machine code, for DUPLICATE."""
    notes: tuple[str, ...] = ()
    """What a reader should know about it that decided nothing about its status: one line each."""

    @property
    def ok(self) -> bool:
        """Correct and timed in full: what is ranked."""
        return self.status is Status.OK

    @property
    def value_us(self) -> float | None:
        """What a search learns of it: its time, also where it was dropped after a few samples; None when it failed."""
        if self.timing is None or self.status not in (Status.OK, Status.PRUNED):
            return None
        return self.timing.median_us

    def failed(self, status: Status, reason: str) -> Evaluation:
        """A copy that ends the walk with a status."""
        return replace(self, status=status, reason=reason)


@dataclass(frozen=True)
class Duel:
    """Evidence of one challenge: fresh interleaved pairs of challenger and champion.

    For predicted rows there is one pair, the two predictions, and ``low_gain`` equals ``gain``.
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
    """The GPU meanwhile; None for predictions, and for duels of before it was recorded."""
