#!/usr/bin/env python3
"""Measures calls of evoengine.attention beside SDPA: eager, compiled, in CUDA graphs, and in a transformer.

    python scripts/measure/eager_benchmark.py --db leaderboard.db --out docs/results/part-5-python-api-h200
    python scripts/measure/eager_benchmark.py --db leaderboard.db --tune 300    # searches first if there is no champion
    python scripts/measure/eager_benchmark.py --from-json eager.json --out page

Host time is the time until a call returns to the calling thread, without waiting for the GPU: the median over rounds of
several calls, SDPA and EvoEngine interleaved. Device time is that of a replayed CUDA graph of 20 calls, per call.
``--out`` writes OUT.json and OUT.md; ``--from-json`` writes the page of stored results and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import torch
import transformer

import evoengine
from evoengine.errors import UsageError
from evoengine.model import DType, Problem, parse_problem

Call = Callable[[], Any]
GRAPH_CALLS = 20


def tensors_of(problem: Problem) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    shapes = [(problem.batch, problem.heads, problem.seq_q, problem.head_dim)]
    shapes += [(problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim)] * 2
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes]


def calls_of(problem: Problem, tensors: list[torch.Tensor], leaderboard: str) -> dict[str, Call]:
    q, k, v = tensors
    sdpa = torch.nn.functional.scaled_dot_product_attention
    grouped, causal = problem.heads != problem.kv_heads, problem.causal
    options = {"enable_gqa": True} if grouped else {}
    ours = evoengine.attention
    op = torch.ops.evoengine.attention_qkv.default  # the custom op, which compiled programs call

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ours(q, k, v, causal=causal, leaderboard=leaderboard)

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, is_causal=causal, **options)

    own_compiled, theirs_compiled = torch.compile(own, fullgraph=True), torch.compile(theirs, fullgraph=True)
    return {
        "sdpa": lambda: theirs(q, k, v),
        "evoengine": lambda: own(q, k, v),
        "evoengine, the op": lambda: op(q, k, v, causal, "bhsd", True, leaderboard),
        "sdpa, compiled": lambda: theirs_compiled(q, k, v),
        "evoengine, compiled": lambda: own_compiled(q, k, v),
    }


def host_us(calls: dict[str, Call], count: int, rounds: int) -> dict[str, float]:
    """Median host time of a call, in microseconds."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):  # fewer than the driver queues, so that the host does not wait for the GPU
                call()
            if number >= 3:
                samples[name].append((time.perf_counter() - start) / count * 1e6)
            torch.cuda.synchronize()
    return {name: statistics.median(values) for name, values in samples.items()}


def capture(call: Call) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    return graph


def device_us(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median device time of a call in a replayed graph, in microseconds."""
    graphs = {name: capture(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()  # warm-up: fills caches and keeps the host ahead
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if number >= 3:
                samples[name].append(start.elapsed_time(end) * 1e3 / GRAPH_CALLS)
    return {name: statistics.median(values) for name, values in samples.items()}


def measure(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    tensors = tensors_of(problem)
    call_options = {"causal": problem.causal, "leaderboard": options.db}
    if options.tune and not evoengine.explain(*tensors, **call_options).ours:
        evoengine.tune(*tensors, budget=options.tune, **call_options)
    with torch.inference_mode():
        calls = calls_of(problem, tensors, options.db)
        expected = calls["sdpa"]()
        for name, call in calls.items():
            difference = float((call().float() - expected.float()).abs().max())
            assert difference < options.tolerance, f"{name} differs by {difference}"
        eager = {name: calls[name] for name in ("sdpa", "evoengine")}
        served_by = str(evoengine.explain(*tensors, **call_options))
        return {
            "problem": problem.key,
            "served_by": served_by.replace(options.db or "\0", Path(options.db).name),
            "host_us": host_us(calls, options.calls, options.rounds),
            "graph_device_us": device_us(eager, options.rounds),
        }


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['gpu']}, torch {report['torch']}")
    for item in report["problems"]:
        print(f"\n{item['served_by']}")
        host, device = item["host_us"], item["graph_device_us"]
        for name, us in host.items():
            against = host["sdpa, compiled"] if "compiled" in name else host["sdpa"]
            print(f"  host    {name:<22} {us:7.2f} us a call   {us / against:.2f} of SDPA's")
        for name, us in device.items():
            print(f"  device  {name:<22} {us:7.2f} us a call in a graph")
    for model in report["transformers"]:
        print()
        transformer.print_report(model)


# --- the page ---------------------------------------------------------------------------------------------------------


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Calls from Python on {report['gpu']}"
    yield ""
    versions = f"EvoEngine {report['evoengine']}, torch {report['torch']}, Python {report['python']}"
    yield f"{report['date']}, {versions}. Command:"
    yield ""
    yield f"    {report['command']}"
    yield ""
    yield "Host time is the time until a call returns to the calling thread; device time is that of a replayed CUDA"
    yield "graph, per call. Both are medians in µs, SDPA and EvoEngine interleaved, under `torch.inference_mode()`;"
    yield "`share` is EvoEngine's time over SDPA's."
    yield ""
    yield "| problem | time | SDPA | EvoEngine | share |"
    yield "|---|---|---:|---:|---:|"
    for item in report["problems"]:
        host, device = item["host_us"], item["graph_device_us"]
        yield _row(item["problem"], "host, eager", host["sdpa"], host["evoengine"])
        yield _row("", "host, eager, through the custom op", host["sdpa"], host["evoengine, the op"])
        yield _row("", "host, `torch.compile`", host["sdpa, compiled"], host["evoengine, compiled"])
        yield _row("", "device, CUDA graph", device["sdpa"], device["evoengine"])
    for model in report["transformers"]:
        yield ""
        yield from _transformer(model)


def _transformer(model: dict[str, Any]) -> Iterator[str]:
    mask, largest = "causal" if model["causal"] else "full", model["largest_difference"]
    yield f"## A transformer of {model['layers']} layers, {model['tokens']} tokens, {mask} attention, fp16"
    yield ""
    reach = f"{model['largest_logit']:.3f}"
    yield f"With either attention, logits differ by at most {largest:.1e}; the largest logit is {reach}. Wall time of a"
    yield "forward pass in µs, with a synchronisation after every 50; `×` is SDPA's over EvoEngine's time. Host time is"
    yield "the time to enqueue a pass: where it is close to the wall time, the GPU waits for the host, and a faster"
    yield "kernel gains nothing."
    yield ""
    yield "| way | SDPA | EvoEngine | × | host, SDPA | host, EvoEngine |"
    yield "|---|---:|---:|---:|---:|---:|"
    for way, times in model["ways"].items():
        host = model["host"][way]
        gain = times["sdpa"] / times["evoengine"]
        yield (
            f"| {way} | {times['sdpa']:.1f} | {times['evoengine']:.1f} | {gain:.2f} "
            f"| {host['sdpa']:.1f} | {host['evoengine']:.1f} |"
        )
    yield ""
    yield "Kernels used:"
    yield ""
    yield from (f"    {line}" for line in model["served_by"].splitlines())


def _row(problem: str, what: str, sdpa: float, ours: float) -> str:
    return f"| {problem} | {what} | {sdpa:.2f} | {ours:.2f} | {ours / sdpa:.2f} |"


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--db", default="", help="Leaderboard or lockfile.")
    parser.add_argument("--problems", default="default,short,long", help="Comma-separated names or shapes.")
    parser.add_argument("--causal", action="store_true", help="Apply a causal mask to every problem.")
    parser.add_argument("--tune", type=int, default=0, help="Budget of a search for problems without a kernel.")
    parser.add_argument("--calls", type=int, default=200, help="Calls per round.")
    parser.add_argument("--rounds", type=int, default=31, help="Timing rounds.")
    parser.add_argument("--tolerance", type=float, default=0.01, help="Maximum absolute difference of outputs.")
    parser.add_argument("--from-json", type=Path, help="Stored results; measure nothing.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    return parser.parse_args()


def _measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Measures all problems and both transformers.

    Raises:
        UsageError: No GPU is visible.
    """
    if not torch.cuda.is_available():
        raise UsageError("no GPU is visible; nothing was measured")
    problems = [parse_problem(name, causal=options.causal) for name in common.comma_list(options.problems)]
    command = ["python", "scripts/measure/eager_benchmark.py", *(Path(word).name or word for word in sys.argv[1:])]
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "evoengine": evoengine.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(command),
        "problems": [measure(problem, options) for problem in problems],
        "transformers": [
            transformer.measure(transformer.parse(["--db", options.db, "--rounds", str(options.rounds), *mask]))
            for mask in ((), ("--causal",))
        ],
    }


def main() -> int:
    options = _arguments()
    if options.from_json is None:
        report = _measure_all(options)
        print_report(report)
    else:
        report = json.loads(options.from_json.read_text())
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(report))
    return 0


if __name__ == "__main__":
    common.run(main)
