"""The records that every room shares: frozen, typed, free of behaviour that needs a device."""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from evoengine.errors import ProblemError

Value = int | str | bool
"""What a tunable can hold."""


class DType(enum.Enum):
    """Element type of Q, K, V and O."""

    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 2


@dataclass(frozen=True)
class Problem:
    """One attention forward problem: what a search optimises for.

    Q is ``[batch, heads, seq_q, head_dim]``, K and V are ``[batch, kv_heads, seq_kv, head_dim]``. A causal mask is
    aligned bottom-right: query row ``i`` sees keys ``j <= i + seq_kv - seq_q``; a row that sees no key yields zeros.

    Raises:
        ProblemError: a size is not positive, or ``heads`` is not a multiple of ``kv_heads``.
    """

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int = 0
    """0 stands for "as many as heads" and is replaced by it."""
    seq_kv: int = 0
    """0 stands for "as many as seq_q" and is replaced by it."""
    dtype: DType = DType.FP16
    causal: bool = False

    def __post_init__(self) -> None:
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.seq_kv == 0:
            object.__setattr__(self, "seq_kv", self.seq_q)
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"):
            if getattr(self, name) < 1:
                raise ProblemError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ProblemError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")

    @property
    def key(self) -> str:
        """Canonical name, the identity in the leaderboard: ``1x8x512x64-fp16``, ``…-kv2-skv4096-fp16-causal``."""
        parts = [f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"]
        if self.kv_heads != self.heads:
            parts.append(f"kv{self.kv_heads}")
        if self.seq_kv != self.seq_q:
            parts.append(f"skv{self.seq_kv}")
        parts.append(self.dtype.value)
        if self.causal:
            parts.append("causal")
        return "-".join(parts)

    @property
    def softmax_scale(self) -> float:
        """The factor on QKᵀ: ``1/sqrt(head_dim)``."""
        return float(self.head_dim**-0.5)

    @property
    def flops(self) -> int:
        """Multiply-adds counted twice, by FlashAttention's convention (halved under a square causal mask)."""
        full = 4 * self.batch * self.heads * self.seq_q * self.seq_kv * self.head_dim
        return full // 2 if self.causal else full

    @property
    def min_bytes(self) -> int:
        """Bytes that any kernel must move: Q, K, V read once and O written once."""
        q_and_o = 2 * self.batch * self.heads * self.seq_q * self.head_dim
        k_and_v = 2 * self.batch * self.kv_heads * self.seq_kv * self.head_dim
        return (q_and_o + k_and_v) * self.dtype.bytes


_SHAPE: Final = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)")

NAMED_PROBLEMS: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "tiny": (1, 1, 32, 64),
    "small": (1, 2, 64, 64),
    "medium": (1, 4, 128, 64),
    "mission": (1, 8, 512, 64),
    "multi_batch": (4, 8, 256, 64),
    "short": (1, 8, 256, 64),
    "long": (1, 8, 1024, 64),
}
"""Shapes (batch, heads, seq, head_dim) that have a name; "mission" is the default."""


def parse_problem(
    text: str,
    *,
    kv_heads: int | None = None,
    seq_kv: int | None = None,
    dtype: DType = DType.FP16,
    causal: bool = False,
) -> Problem:
    """Reads ``BxHxSxD`` or a name from :data:`NAMED_PROBLEMS`.

    Raises:
        ProblemError: the text is neither, or the sizes do not make a problem.
    """
    match = _SHAPE.fullmatch(text)
    if match is None and text not in NAMED_PROBLEMS:
        names = ", ".join(NAMED_PROBLEMS)
        raise ProblemError(f"unknown problem '{text}': give BxHxSxD, for example 1x8x512x64, or one of {names}")
    batch, heads, seq, head_dim = map(int, match.groups()) if match else NAMED_PROBLEMS[text]
    given = {"kv_heads": kv_heads, "seq_kv": seq_kv}
    for name, value in given.items():
        if value is not None and value < 1:
            raise ProblemError(f"{name} must be at least 1, not {value}")
    return Problem(batch, heads, seq, head_dim, kv_heads or 0, seq_kv or 0, dtype, causal)


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

    @property
    def key(self) -> str:
        """Identity of the config: 16 hex digits of SHA-256 over the canonical JSON."""
        text = json.dumps([self.family, self.as_dict()], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


class Status(enum.Enum):
    """How the walk of one candidate ended."""

    OK = "ok"
    INVALID_CONFIG = "invalid_config"
    RENDER_FAILED = "render_failed"
    COMPILE_FAILED = "compile_failed"
    RESOURCE_LIMIT = "resource_limit"
    LAUNCH_FAILED = "launch_failed"
    PARITY_FAILED = "parity_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    DUPLICATE = "duplicate"
    PRUNED = "pruned"


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
    """Largest absolute error against the fp64 reference, in the worst case."""
    tolerance: float
    """The bound on it in that case: cases differ in the size of their values."""
    relative_l2: float
    """Largest ‖out − ref‖₂ / ‖ref‖₂ over all cases that ran."""
    cases: int
    """Cases that ran."""
    worst_case: str
    """Name of the case with the largest ratio of error to tolerance, or of the one that failed."""
    reason: str = ""
    """Why it failed; empty when passed."""


@dataclass(frozen=True)
class Timing:
    """The objective of one candidate: device time per call, measured or predicted."""

    median_us: float
    low_us: float
    """Lower end of the 95 % confidence interval of the median."""
    high_us: float
    predicted: bool
    method: str
    """Name of the objective: ``graph-warm``, ``graph-cold`` or ``model-v1``."""
    samples_us: tuple[float, ...] = ()
    baseline_us: float | None = None
    """Median of the baseline, interleaved in the same run; None where nothing could be measured."""
    baseline: str = ""
    """Which SDPA backend that was."""

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

    @property
    def ok(self) -> bool:
        """Correct and timed."""
        return self.status is Status.OK

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
