"""The options of ``search`` that say how candidates are checked, timed and accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from evoengine.cli.options.shared_options import taking


@dataclass(frozen=True)
class MeasurementOptions:
    """Fields of :class:`~evoengine.engine.options.SearchOptions` with these names."""

    inputs_seed: int | None
    accept: float
    cold_l2: bool
    eager: bool
    racing: bool
    spill_limit_bytes: int
    energy: bool
    sanitizer: bool


def named_judging(
    inputs_seed: Annotated[
        int | None, typer.Option(min=0, help="Of the inputs that kernels are checked on. [default: a fresh one]")
    ] = None,
    accept: Annotated[float, typer.Option(min=0.0, max=1.0, help="Gain that dethrones a champion.")] = 0.03,
    cold_l2: Annotated[bool, typer.Option("--cold-l2", help="Time with a flushed L2 cache (cuda only).")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="Time launches from the host, no graph (cuda only).")] = False,
    racing: Annotated[bool, typer.Option(help="Drop hopeless kernels after a few samples (cuda only).")] = True,
    spill_limit: Annotated[int, typer.Option(min=0, help="Most bytes that a thread may spill, 0 for any.")] = 2048,
    energy: Annotated[bool, typer.Option(help="Measure the elites' energy at the end (cuda only).")] = True,
    sanitizer: Annotated[bool, typer.Option(help="Run new champions under compute-sanitizer (cuda only).")] = True,
) -> MeasurementOptions:
    """What the options say."""
    return MeasurementOptions(inputs_seed, accept, cold_l2, eager, racing, spill_limit, energy, sanitizer)


takes_measurement_options = taking("judging", named_judging)
"""Gives a verb the options of :func:`named_judging` in place of its parameter ``judging``."""
