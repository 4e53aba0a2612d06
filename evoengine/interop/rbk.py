"""The rbk dialect: ``rbk_config.yaml`` as a set of problems, ``rbk_report.json`` and ``.md`` as output.

The dialect is that of the tool that GOATnote's periodicdent42 names ``rbk``; it is not Sakana's robust-kbench, for
which see :mod:`evoengine.export.robust_kbench`. Its TFLOP/s do not halve for a causal mask, and so do not here.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from evoengine.errors import LandscapeError, ProblemError
from evoengine.landscape.checked import Checked
from evoengine.leaderboard.records import Record
from evoengine.model import DType, Problem

_DTYPES: Final[Mapping[str, DType]] = {
    "fp16": DType.FP16,
    "float16": DType.FP16,
    "half": DType.FP16,
    "bf16": DType.BF16,
    "bfloat16": DType.BF16,
}
_SHAPE_KEYS: Final = frozenset(
    ("name", "batch_size", "num_heads", "seq_len", "head_dim", "causal", "dtype"),
)
_CONFIG_KEYS: Final = frozenset(
    ("warmups", "iterations", "output_dir", "save_json", "save_csv", "save_markdown", "shapes")
)
_MOST_BYTES: Final = 2**20
_TOP: Final = 5


@dataclass(frozen=True)
class RbkShape:
    """One entry of ``shapes``."""

    name: str
    problem: Problem


@dataclass(frozen=True)
class RbkConfig:
    """What of ``rbk_config.yaml`` has a meaning here; warm-ups and iterations are this engine's own business."""

    shapes: tuple[RbkShape, ...]
    output_dir: str
    save_json: bool
    save_csv: bool
    save_markdown: bool


def read_rbk_config(path: Path) -> RbkConfig:
    """Reads the set of problems.

    Raises:
        LandscapeError: the file cannot be read, or something in it is wrong: file, key, reason.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise LandscapeError(path, "", f"is larger than {_MOST_BYTES >> 20} MiB")
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LandscapeError(path, "", f"cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise LandscapeError(path, "", f"is no YAML: {' '.join(str(error).split())}") from None
    whole = Checked(str(path), "", document)
    _refuse_unknown(whole, _CONFIG_KEYS)
    shapes = tuple(_shape(part) for part in whole.parts("shapes"))
    if not shapes:
        raise whole.error("shapes", "names no problem")
    names = [shape.name for shape in shapes]
    if len(set(names)) < len(names):
        raise whole.error("shapes", "two have one name")
    saves = {
        name: whole.flag(name) if name in whole.content else name != "save_csv"
        for name in ("save_json", "save_csv", "save_markdown")
    }
    return RbkConfig(shapes, whole.text("output_dir") if "output_dir" in whole.content else ".", **saves)


def _refuse_unknown(part: Checked, known: frozenset[str]) -> None:
    for name in part.content:
        if name not in known:
            raise part.error(str(name), f"is not known: the keys are {', '.join(sorted(known))}")


def _shape(part: Checked) -> RbkShape:
    _refuse_unknown(part, _SHAPE_KEYS)
    name = part.text("dtype") if "dtype" in part.content else "fp16"
    if name.removeprefix("torch.") not in _DTYPES:
        raise part.error("dtype", f"is '{name}', not fp16 or bf16")
    batch, heads, seq, head_dim = (part.whole(size, 1) for size in ("batch_size", "num_heads", "seq_len", "head_dim"))
    causal = part.flag("causal") if "causal" in part.content else False
    try:
        problem = Problem(batch, heads, seq, head_dim, dtype=_DTYPES[name.removeprefix("torch.")], causal=causal)
    except ProblemError as error:
        raise part.error("", str(error)) from None
    return RbkShape(part.text("name") if "name" in part.content else problem.key, problem)


def rbk_report(shapes: Sequence[RbkShape], champions: Mapping[str, Record]) -> dict[str, Any]:
    """``rbk_report.json``.

    Args:
        shapes: what the config names.
        champions: the row to report for each problem, by the problem's key; problems without one are ``missing``.
    """
    results = [_result(shape, champions[shape.problem.key]) for shape in shapes if shape.problem.key in champions]
    summary: dict[str, Any] = {
        "total_shapes": len(shapes),
        "kernels": sorted({result["kernel_name"] for result in results}),
        "mean_p50_ms": statistics.fmean(result["p50_latency_ms"] for result in results) if results else None,
        "mean_tflops": statistics.fmean(result["tflops"] for result in results) if results else None,
    }
    missing = [shape.name for shape in shapes if shape.problem.key not in champions]
    return {"results": results, "summary": summary, "missing": missing}


def _result(shape: RbkShape, record: Record) -> dict[str, Any]:
    problem, row, timing = shape.problem, record.row, record.evaluation.timing
    assert timing is not None, "a row that is reported was timed"
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
        "tflops": flops / (timing.median_us * 1e6),
        "raw_latencies_ms": [us / 1e3 for us in timing.samples_us],
        "predicted": row.predicted,
        "device": row.device,
        "row": row.id,
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest samples."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rbk_markdown(report: Mapping[str, Any]) -> str:
    """``rbk_report.md``: summary, results, and the five with the highest rate."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    results, summary = report["results"], report["summary"]
    yield from ("# Benchmark report", "", "## Summary", "")
    yield f"- shapes: {summary['total_shapes']}"
    yield f"- kernels: {', '.join(summary['kernels']) or 'none'}"
    if results:
        yield f"- mean p50: {summary['mean_p50_ms']:.6f} ms"
        yield f"- mean rate: {summary['mean_tflops']:.2f} TFLOP/s, a causal mask not halving the work"
    if any(result["predicted"] for result in results):
        yield "- **kernels named `-predicted` were not measured: a model says their times**"
    if report["missing"]:
        yield f"- without a correct kernel: {', '.join(report['missing'])}"
    for title, chosen in (
        ("Detailed Results", results),
        (f"Top {_TOP}", sorted(results, key=lambda result: -result["tflops"])[:_TOP]),
    ):
        yield from ("", f"## {title}", "")
        yield "| shape | kernel | device | p50 ms | p90 ms | p99 ms | TFLOP/s |"
        yield "|---|---|---|---:|---:|---:|---:|"
        for result in chosen:
            times = " | ".join(f"{result[f'p{share}_latency_ms']:.6f}" for share in (50, 90, 99))
            name = result["shape"]["name"].replace("|", "\\|")
            yield f"| {name} | {result['kernel_name']} | {result['device']} | {times} | {result['tflops']:.2f} |"


def rbk_csv(report: Mapping[str, Any]) -> str:
    """The results as CSV."""
    head = ["name", "kernel_name", "p50_latency_ms", "p90_latency_ms", "p95_latency_ms", "p99_latency_ms", "tflops"]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**result, "name": result["shape"]["name"]} for result in report["results"])
    return text.getvalue()
