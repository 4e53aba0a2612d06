#!/usr/bin/env python3
"""Compares a two-layer transformer on SDPA with the same model on evoengine.attention: logits and end-to-end time.

    python scripts/measure/transformer.py --db leaderboard.db         # on a GPU: eager, compiled, in CUDA graphs
    python scripts/measure/transformer.py --device cpu --tokens 64    # without a GPU: torch runs both; logits only

Wall times are of forward passes with a final synchronisation, the two models interleaved; host times end when the last
pass is enqueued. Where both are about equal, the GPU waits for the host, and a faster kernel gains nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
from torch import nn

import evoengine

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``attention(q, k, v)`` on [batch, heads, tokens, head_dim]."""
Forward = Callable[[torch.Tensor], torch.Tensor]

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 8, 64, 2, 1000
WIDTH = HEADS * HEAD_DIM


class Layer(nn.Module):
    """Pre-norm attention and feed-forward blocks with residual connections."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps ``[batch, tokens, WIDTH]`` to the same shape."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, HEAD_DIM)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # strided views [batch, heads, tokens, head_dim]
        o = self.attention(q, k, v).transpose(1, 2).reshape(batch, tokens, WIDTH)
        x = x + self.out(o)
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Token and position embeddings, the layers, logits over a vocabulary."""

    def __init__(self, attention: Attention, tokens: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(tokens, WIDTH)
        self.layers = nn.Sequential(*(Layer(attention) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps token numbers ``[batch, tokens]`` to logits ``[batch, tokens, VOCABULARY]``."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.layers(x)))


def attentions(causal: bool, leaderboard: str) -> dict[str, Attention]:
    """The two attention functions, SDPA first."""

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return evoengine.attention(q, k, v, causal=causal, leaderboard=leaderboard)

    return {"sdpa": sdpa, "evoengine": ours}


def build(options: argparse.Namespace) -> dict[str, Transformer]:
    """Two models with the same weights."""
    models = {}
    for name, attention in attentions(options.causal, options.db).items():
        torch.manual_seed(0)
        models[name] = Transformer(attention, options.tokens).to(options.device, torch.float16).eval()
    return models


def graphed(model: Forward, ids: torch.Tensor) -> Forward:
    """The model as a CUDA graph that replays with the given ids."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(ids)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(ids)

    def replay(_ids: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return logits

    return replay


def time_us(
    models: dict[str, Forward], ids: torch.Tensor, passes: int, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Median wall time and host time of a forward pass, in microseconds; the models are interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in models}
    enqueued: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 3):
        for name, model in models.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(passes):
                model(ids)
            host = time.perf_counter()
            torch.cuda.synchronize()
            if number >= 3:
                samples[name].append((time.perf_counter() - start) / passes * 1e6)
                enqueued[name].append((host - start) / passes * 1e6)
    wall, hosts = ({name: statistics.median(values) for name, values in times.items()} for times in (samples, enqueued))
    return wall, hosts


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compares logits, and on a GPU times all ways to run the models."""
    models = build(options)
    ids = torch.randint(VOCABULARY, (1, options.tokens), device=options.device)
    q = torch.empty(1, options.tokens, HEADS, HEAD_DIM, dtype=torch.float16, device=options.device).transpose(1, 2)
    report: dict[str, Any] = {"layers": LAYERS, "tokens": options.tokens, "causal": options.causal, "ways": {}}
    report["host"] = {}
    with torch.inference_mode():
        served_by = str(evoengine.explain(q, q, q, causal=options.causal, leaderboard=options.db))
        report["served_by"] = served_by.replace(options.db, Path(options.db).name) if options.db else served_by
        logits = {name: model(ids).float() for name, model in models.items()}
        report["largest_logit"] = float(logits["sdpa"].abs().max())
        report["largest_difference"] = float((logits["evoengine"] - logits["sdpa"]).abs().max())
        if options.device != "cpu":
            ways: dict[str, Callable[[Transformer], Forward]] = {
                "eager": lambda model: model,
                "torch.compile": lambda model: torch.compile(model, fullgraph=True),
                "CUDA graph": lambda model: graphed(model, ids),
                "torch.compile, CUDA graph": lambda model: graphed(torch.compile(model, fullgraph=True), ids),
                "torch.compile, reduce-overhead": lambda model: torch.compile(
                    model, fullgraph=True, mode="reduce-overhead"
                ),
            }
            for way, prepare in ways.items():
                torch.compiler.reset()
                ready = {name: prepare(model) for name, model in models.items()}
                for name, model in ready.items():
                    difference = float((model(ids).float() - logits[name]).abs().max())
                    assert difference <= options.tolerance, f"{way}, {name}: logits differ by {difference}"
                report["ways"][way], report["host"][way] = time_us(ready, ids, options.passes, options.rounds)
    return report


def print_report(report: dict[str, Any]) -> None:
    """Prints the report as text."""
    mask = ", causal" if report["causal"] else ""
    print(f"{report['layers']} layers, {HEADS} heads of {HEAD_DIM}, {report['tokens']} tokens, fp16{mask}")
    print(report["served_by"])
    print(f"logits up to {report['largest_logit']:.3f}, largest difference {report['largest_difference']:.2e}")
    for way, times in report["ways"].items():
        gain, host = times["sdpa"] / times["evoengine"], report["host"][way]
        print(
            f"{way:<32} SDPA {times['sdpa']:8.1f} us   evoengine {times['evoengine']:8.1f} us   {gain:.2f}x"
            f"   (host {host['sdpa']:.1f}, {host['evoengine']:.1f})"
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="PyTorch device.")
    parser.add_argument("--tokens", type=int, default=512, help="Sequence length.")
    parser.add_argument("--causal", action="store_true", help="Apply a causal mask.")
    parser.add_argument("--db", default="", help="Leaderboard or lockfile.")
    parser.add_argument("--passes", type=int, default=50, help="Forward passes per round.")
    parser.add_argument("--rounds", type=int, default=15, help="Timing rounds.")
    parser.add_argument("--tolerance", type=float, default=0.02, help="Maximum absolute difference of logits.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    report = measure(options)
    print(json.dumps(report, indent=1)) if options.json else print_report(report)
    return int(report["largest_difference"] > options.tolerance)


if __name__ == "__main__":
    common.run(main)
