"""What a call of evoengine.attention costs the host beside SDPA: eager, compiled, in CUDA graphs; and a transformer.

    python scripts/measure/eager_benchmark.py --db leaderboard.db
    python scripts/measure/eager_benchmark.py --db leaderboard.db --tune 300     # searches first where there is no champion
    python scripts/measure/eager_benchmark.py --db leaderboard.db --json eager.json      # eager_report.py makes a page of it

Host time is what the calling thread spends until a call returns, without waiting for the GPU: the median over rounds of
some calls each, SDPA and ours in turns. Device time is that of a replayed CUDA graph of 20 calls, per call.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformer

import evoengine
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
    said = {"enable_gqa": True} if grouped else {}
    ours = evoengine.attention
    op = torch.ops.evoengine.attention_qkv.default  # what a compiled program calls

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ours(q, k, v, causal=causal, leaderboard=leaderboard)

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, is_causal=causal, **said)

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
            for _ in range(count):  # fewer than the driver queues, so that nobody waits for the GPU
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
            graph.replay()  # leads in: caches are warm, and the host is ahead
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if number >= 3:
                samples[name].append(start.elapsed_time(end) * 1e3 / GRAPH_CALLS)
    return {name: statistics.median(values) for name, values in samples.items()}


def measure(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    tensors = tensors_of(problem)
    said = {"causal": problem.causal, "leaderboard": options.db}
    if options.tune and not evoengine.explain(*tensors, **said).ours:
        evoengine.tune(*tensors, budget=options.tune, **said)
    with torch.inference_mode():
        calls = calls_of(problem, tensors, options.db)
        wanted = calls["sdpa"]()
        for name, call in calls.items():
            difference = float((call().float() - wanted.float()).abs().max())
            assert difference < options.tolerance, f"{name} differs by {difference}"
        eager = {name: calls[name] for name in ("sdpa", "evoengine")}
        return {
            "problem": problem.key,
            "served_by": str(evoengine.explain(*tensors, **said)).replace(options.db or "\0", Path(options.db).name),
            "host_us": host_us(calls, options.calls, options.rounds),
            "graph_device_us": device_us(eager, options.rounds),
        }


def tell(report: dict[str, Any]) -> None:
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
        transformer.tell(model)


def _without_folder(word: str) -> str:
    """An argument as another user would give it: the folders of this run are nobody's business."""
    return Path(word).name if os.sep in word else word


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", default="", help="leaderboard or lockfile")
    parser.add_argument("--problems", default="mission,short,long", help="names or shapes, with commas between")
    parser.add_argument("--causal", action="store_true", help="each with a causal mask")
    parser.add_argument("--tune", type=int, default=0, help="budget of a search where there is no kernel")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU: nothing is measured", file=sys.stderr)
        return 2
    problems = [parse_problem(name, causal=options.causal) for name in options.problems.split(",")]
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "evoengine": evoengine.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "scripts/measure/eager_benchmark.py", *map(_without_folder, sys.argv[1:])]),
    }
    report["problems"] = [measure(problem, options) for problem in problems]
    report["transformers"] = [
        transformer.measure(transformer.parse(["--db", options.db, "--rounds", str(options.rounds), *mask]))
        for mask in ((), ("--causal",))
    ]
    tell(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
