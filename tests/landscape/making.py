"""Landscapes for tests: a real one recorded on the emulator, and small handmade ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evoengine.landscape.file import keyed
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Resources, Status, Timing
from evoengine.space.language.rules import Derived, Start
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal

RECORDED = Path(__file__).parent / "mma-1x2x128x64-l4-predicted.landscape.xz"
"""All 216 configs of a corner of the mma space, predicted."""

SPACE = SearchSpace(
    family="toy",
    doc="three tunables",
    tunables=(
        Ordinal("TILE", (16, 32, 64), "rows", "tile"),
        Categorical("LAYOUT", ("plain", "padded"), "layout", "layout"),
        Boolean("UNROLL", (False, True), "switch", "unroll", "LOOPS > 1"),
    ),
    derived=(Derived("LOOPS", "seq_kv // TILE", "loops", "trip count"),),
    constraints=(),
    starts=(Start("usual", "a good one", (("TILE", 32),)),),
)
RESOURCES = Resources(64, 8, 16, 1024, 2048, 128)


def config(tile: int, layout: str, unroll: bool) -> Config:
    return Config.of("toy", {"TILE": tile, "LAYOUT": layout, "UNROLL": unroll})


def timed(which: Config, us: float, code: str) -> Evaluation:
    timing = Timing(us, us * 0.99, us * 1.02, predicted=False, method="graph-warm")
    seconds = {"compile": 0.5, "parity": 0.02, "bench": 0.1}
    return Evaluation(which, Status.OK, "", "", code, "t1", "", RESOURCES, None, timing, seconds)


def toy(evaluations: Sequence[Evaluation] | None = None) -> Landscape:
    """Returns five of the twelve configs: two are the same kernel, two failed."""
    five = evaluations or (
        timed(config(16, "plain", False), 10.0, "c1"),
        timed(config(16, "padded", True), 8.0, "c2"),
        timed(config(32, "plain", False), 8.0, "c2"),
        Evaluation(config(64, "plain", False), Status.COMPILE_FAILED, "line 3: expected ;", template_hash="t1"),
        Evaluation(config(64, "padded", True), Status.TIMEOUT, "2 s", "", "c9", "t1", resources=RESOURCES),
    )
    return keyed(
        Landscape(
            problem=Problem(1, 2, 64, 64, causal=True, lengths_q=()),
            device=DeviceInfo("cuda", "NVIDIA H200", "sm_90a", predicted=False, driver="580.1", nvrtc="13.0"),
            limits={"smem_per_block": 232448, "sms": 132},
            method="graph-warm",
            families=(RecordedFamily(SPACE, "s1", "t1", 12, tuple(five)),),
            provenance=LandscapeSource(
                "0.1.0", "2026-01-02T03:04:05+00:00", "evoengine landscape record", "all", "some"
            ),
        )
    )
