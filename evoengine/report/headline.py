"""Head of a study: problem in words, and the result as a few large figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evoengine.leaderboard.records import Row
from evoengine.model import Problem, Status
from evoengine.report.facts import StudyFacts, row_us
from evoengine.report.roofline import roof_of


@dataclass(frozen=True)
class Tile:
    """One large figure."""

    label: str
    value: str
    note: str
    unit: str = ""


def problem_words(problem: Problem) -> str:
    """Describes a problem: ``batch 1, 8 heads, 512 queries × 512 keys, head_dim 64, fp16``."""
    heads = f"{problem.heads} heads" if problem.heads > 1 else "1 head"
    if problem.kv_heads != problem.heads:
        heads += f" ({problem.kv_heads} for K and V)"
    what = f"{problem.seq_q} quer{'y' if problem.seq_q == 1 else 'ies'} × {problem.seq_kv} keys"
    batch = f"{problem.batch} packed sequences of at most" if problem.packed else f"batch {problem.batch},"
    order = f"{batch} {what}, {heads}" if problem.packed else f"{batch} {heads}, {what}"
    return ", ".join((order, f"head_dim {problem.head_dim}", problem.dtype.value, *_features(problem)))


def _features(problem: Problem) -> Iterator[str]:
    if problem.causal:
        yield "causal mask"
    if problem.window_left is not None:
        yield f"window of {problem.window_left} keys to the left"
    if problem.window_right is not None:
        yield f"window of {problem.window_right} keys to the right"
    if problem.softcap:
        yield f"softcap {problem.softcap:g}"
    if problem.sink:
        yield "attention sink"
    if problem.lse:
        yield "with log-sum-exp"


def kind_of(facts: StudyFacts) -> str:
    """Returns whether times are measured, replayed or predicted, and for which device."""
    device = facts.study.scope.device
    if facts.predicted:
        return f"Times predicted for {device}"
    replayed = ", replayed from a recording" if facts.study.scope.device_kind == "replay" else ""
    return f"Times measured on {device}{replayed}"


def tiles(facts: StudyFacts, counts: Mapping[Status, int]) -> Iterator[Tile]:
    """Yields time, gains and share of the roofline of the champion, and the number of candidates."""
    row = None if facts.champion is None else facts.champion.row
    if row is not None and row.median_us is not None:
        note = f"{_interval(row)}family {row.family}, row {row.id}"
        yield Tile("Champion", f"{row.median_us:.3f}", note, facts.unit)
        yield from _gains(facts, row, row.median_us)
        yield from _bound(facts, row.median_us)
    if facts.rows:
        correct = counts.get(Status.OK, 0)
        rest = len(facts.rows) - correct
        note = (
            f"{correct:,} correct and timed, {rest:,} rejected, dropped or duplicate"
            if rest
            else "all correct and timed"
        )
        yield Tile("Candidates", f"{len(facts.rows):,}", note)


def _interval(row: Row) -> str:
    if row.predicted or row.low_us is None or row.high_us is None:
        return ""
    return f"95 % interval {row.low_us:.3f} to {row.high_us:.3f}; "


def _gains(facts: StudyFacts, row: Row, time_us: float) -> Iterator[Tile]:
    timing = None if facts.champion is None else facts.champion.evaluation.timing
    if row.speedup is not None and timing is not None and timing.baseline_us is not None:
        note = f"as fast as {timing.baseline}, which took {timing.baseline_us:.3f} {facts.unit}"
        yield Tile("Against SDPA", f"{row.speedup:.2f}×", note)
    if row.speedup is None and any(one.id != row.id for one in facts.timed):
        start = facts.timed[0]
        note = f"as fast as this search's first correct kernel, {row_us(start):.3f} {facts.unit}; SDPA was not timed"
        yield Tile("Against the start", f"{row_us(start) / time_us:.2f}×", note)


def _bound(facts: StudyFacts, time_us: float) -> Iterator[Tile]:
    roof = roof_of(facts)
    if roof is None:
        return
    if roof.tensor_us >= roof.dram_us:
        note = f"of the tensor cores' {roof.peak:g} TFLOP/s on {roof.target.marketing_name}"
        yield Tile("Roofline", f"{roof.tensor_us / time_us:.0%}", note)
    else:
        note = f"of DRAM's {roof.target.dram_gbps:g} GB/s on {roof.target.marketing_name}; caches can exceed it"
        yield Tile("Roofline", f"{roof.dram_us / time_us:.0%}", note)
