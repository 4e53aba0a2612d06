"""Files of the rbk benchmark: ``rbk_config.yaml`` as a set of problems, ``rbk_report.json`` and ``.md`` as output.

``rbk`` is the tool of GOATnote's periodicdent42. It is not Sakana's robust-kbench, for which see
:mod:`evoengine.export.robust_kbench`. As in rbk, a causal mask does not halve the FLOP count.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine.documents import convert_document
from evoengine.documents.bounds import BoundsError, decode_text, read_bounded
from evoengine.documents.escaping import csv_cell, markdown, printable
from evoengine.errors import LandscapeError, ProblemError
from evoengine.interop.bounded_yaml import parse_yaml
from evoengine.leaderboard.records import Record
from evoengine.model import DType, Problem

_DTYPES: Final[Mapping[str, DType]] = {
    "fp16": DType.FP16,
    "float16": DType.FP16,
    "half": DType.FP16,
    "bf16": DType.BF16,
    "bfloat16": DType.BF16,
}
_TOP: Final = 5


_Size = Annotated[int, Meta(ge=1)]


class _ShapeDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    batch_size: _Size
    num_heads: _Size
    seq_len: _Size
    head_dim: _Size
    causal: bool = False
    dtype: str = "fp16"
    name: str | None = None


class _ConfigDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shapes: Annotated[tuple[_ShapeDocument, ...], Meta(min_length=1)]
    warmups: object = None
    iterations: object = None
    output_dir: str = "."
    save_json: bool = True
    save_csv: bool = False
    save_markdown: bool = True


@dataclass(frozen=True)
class RbkShape:
    """One entry of ``shapes``."""

    name: str
    problem: Problem


@dataclass(frozen=True)
class RbkConfig:
    """Settings of ``rbk_config.yaml`` that EvoEngine uses; it chooses warm-ups and iterations itself."""

    shapes: tuple[RbkShape, ...]
    output_dir: str
    save_json: bool
    save_csv: bool
    save_markdown: bool


def read_rbk_config(path: Path) -> RbkConfig:
    """Reads ``rbk_config.yaml``.

    Raises:
        LandscapeError: The file cannot be read, or an entry is missing, unknown or invalid.
    """
    try:
        content = parse_yaml(decode_text(read_bounded(path)))
    except OSError as error:
        raise LandscapeError(path, "", f"cannot be read: {error.strerror}") from None
    except BoundsError as error:
        raise LandscapeError(path, "", str(error)) from None
    document = convert_document(content, _ConfigDocument, path, LandscapeError)
    shapes = tuple(_shape(shape, path, f"shapes[{number}]") for number, shape in enumerate(document.shapes))
    names = [shape.name for shape in shapes]
    if len(set(names)) < len(names):
        raise LandscapeError(path, "shapes", "two shapes have the same name")
    return RbkConfig(shapes, document.output_dir, document.save_json, document.save_csv, document.save_markdown)


def _shape(shape: _ShapeDocument, path: Path, key: str) -> RbkShape:
    dtype = _DTYPES.get(shape.dtype.removeprefix("torch."))
    if dtype is None:
        raise LandscapeError(path, f"{key}.dtype", f"is {shape.dtype[:40]!r}, not fp16 or bf16")
    try:
        problem = Problem(
            shape.batch_size, shape.num_heads, shape.seq_len, shape.head_dim, dtype=dtype, causal=shape.causal
        )
    except ProblemError as error:
        raise LandscapeError(path, key, str(error)) from None
    return RbkShape(problem.key if shape.name is None else shape.name, problem)


def rbk_report(shapes: Sequence[RbkShape], champions: Mapping[str, Record]) -> dict[str, Any]:
    """Returns the content of ``rbk_report.json``.

    Args:
        shapes: Shapes of the config file.
        champions: Row to report for each problem, by the problem's key; shapes without a row are listed as ``missing``.
    """
    results = [_result(shape, champions[shape.problem.key]) for shape in shapes if shape.problem.key in champions]
    summary: dict[str, Any] = {
        "total_shapes": len(shapes),
        "kernels": sorted({result["kernel_name"] for result in results}),
        "mean_p50_ms": _mean([result["p50_latency_ms"] for result in results]),
        "mean_tflops": _mean([result["tflops"] for result in results if result["tflops"] is not None]),
    }
    missing = [shape.name for shape in shapes if shape.problem.key not in champions]
    return {"results": results, "summary": summary, "missing": missing}


def _result(shape: RbkShape, record: Record) -> dict[str, Any]:
    problem, row, timing = shape.problem, record.row, record.evaluation.timing
    assert timing is not None, "reported rows have a time"
    samples = sorted(us / 1e3 for us in timing.samples_us) or [timing.median_us / 1e3]
    flops = 4 * problem.batch * problem.heads * problem.seq_q * problem.seq_kv * problem.head_dim
    return {
        "shape": {
            "name": shape.name,
            "batch_size": problem.batch,
            "num_heads": problem.heads,
            "seq_len": problem.seq_q,
            "head_dim": problem.head_dim,
            "causal": problem.causal,
            "dtype": problem.dtype.value,
        },
        "kernel_name": f"evoengine-{row.family}{'-predicted' if row.predicted else ''}",
        **{f"p{share}_latency_ms": _percentile(samples, share / 100) for share in (50, 90, 95, 99)},
        "mean_latency_ms": statistics.fmean(samples),
        "std_latency_ms": statistics.stdev(samples) if len(samples) > 1 else 0.0,
        "tflops": _finite(flops / (timing.median_us * 1e6)),
        "raw_latencies_ms": [us / 1e3 for us in timing.samples_us],
        "predicted": row.predicted,
        "device": row.device,
        "row": row.id,
    }


def _mean(values: Sequence[float]) -> float | None:
    return _finite(statistics.fmean(values)) if values else None


def _finite(value: float) -> float | None:
    """Returns a number that JSON has; None for the rate of a time near 0."""
    return value if math.isfinite(value) else None


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Returns a percentile, interpolated linearly between the two nearest samples."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def rbk_markdown(report: Mapping[str, Any]) -> str:
    """Returns ``rbk_report.md``: summary, results, and the five results with the highest rate."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    results, summary = report["results"], report["summary"]
    yield from ("# Benchmark report", "", "## Summary", "")
    yield f"- shapes: {summary['total_shapes']}"
    yield f"- kernels: {markdown(', '.join(summary['kernels'])) or 'none'}"
    if results:
        yield f"- mean p50: {summary['mean_p50_ms']:.6f} ms"
        yield f"- mean rate: {_rate(summary['mean_tflops'])} TFLOP/s, counting the full matrix under a causal mask"
    if any(result["predicted"] for result in results):
        yield "- **times of kernels named `-predicted` are model predictions, not measured**"
    if report["missing"]:
        yield f"- without a correct kernel: {markdown(', '.join(report['missing']))}"
    for title, chosen in (
        ("Detailed Results", results),
        (f"Top {_TOP}", sorted(results, key=lambda result: -(result["tflops"] or 0.0))[:_TOP]),
    ):
        yield from ("", f"## {title}", "")
        yield "| shape | kernel | device | p50 ms | p90 ms | p99 ms | TFLOP/s |"
        yield "|---|---|---|---:|---:|---:|---:|"
        for result in chosen:
            times = " | ".join(f"{result[f'p{share}_latency_ms']:.6f}" for share in (50, 90, 99))
            names = (markdown(text) for text in (result["shape"]["name"], result["kernel_name"], result["device"]))
            yield f"| {' | '.join(names)} | {times} | {_rate(result['tflops'])} |"


def _rate(tflops: float | None) -> str:
    return "–" if tflops is None else f"{tflops:.2f}"


def rbk_csv(report: Mapping[str, Any]) -> str:
    """Returns the results as CSV."""
    head = ["name", "kernel_name", "p50_latency_ms", "p90_latency_ms", "p95_latency_ms", "p99_latency_ms", "tflops"]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for result in report["results"]:
        texts = {"name": result["shape"]["name"], "kernel_name": result["kernel_name"]}
        writer.writerow({**result, **{name: csv_cell(printable(text)) for name, text in texts.items()}})
    return text.getvalue()
