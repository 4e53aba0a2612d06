"""Options of ``evolve`` and ``lineage``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from evoengine.engine.options import choices
from evoengine.engine.options.fields import Arch, Database, Option, Panel, TargetName, Workers, check_fields
from evoengine.engine.options.problem import ProblemField
from evoengine.engine.options.search import DEFAULT_DB, DEFAULT_STRATEGY, SearchOptions
from evoengine.errors import UsageError
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS

CLASSIC_OPERATORS: Final = ("recorded", "crossover", "swap", "configs")
"""Operators that need no model, beside the controls."""
MODEL_OPERATORS: Final = ("patches",)
"""Operators that only a model has."""


@dataclass(frozen=True)
class EvolveOptions:
    """Options of an evolution of one family's source.

    Raises:
        UsageError: A field has another type or is out of its bounds, or an operator is unknown.
    """

    problem: ProblemField = NAMED_PROBLEMS[DEFAULT_PROBLEM]
    operators: Annotated[
        str,
        Option(
            f"Comma-separated operators: {', '.join(CLASSIC_OPERATORS)}. The controls always run beside them; random "
            "alone gives them the whole budget.",
            names=("--operator",),
            metavar="NAME,…",
            several=True,
        ),
    ] = ",".join(CLASSIC_OPERATORS)
    patches: Annotated[
        Path | None, Option("Folder of patch files (*.toml) for the operator recorded, besides the shipped ones.")
    ] = None
    budget: Annotated[int, Option("Number of proposals, those of earlier runs included.", min=1)] = 20
    candidates: Annotated[int, Option("Candidates of the ordinary search for each correct variant.", min=1)] = 30
    time_limit_s: Annotated[
        float | None,
        Option("Seconds after which the evolution stops.", min=0.0, names=("--time-limit",), metavar="SECONDS"),
    ] = None
    islands: Annotated[int, Option("Islands of the archive.", min=1, max=16)] = 2
    seed: Annotated[int, Option("Random seed.", min=0)] = 0
    variants: Annotated[
        bool,
        Option("Continue with the variants in --db, whose patches come from the author of that file."),
    ] = False
    family: Annotated[
        str,
        Option("Kernel family to evolve.", metavar="NAME", panel=Panel.SEARCH, values=choices.families),
    ] = "mma"
    strategy: Annotated[
        str,
        Option("Strategy of the ordinary searches.", metavar="NAME", panel=Panel.SEARCH, values=choices.strategies),
    ] = DEFAULT_STRATEGY
    device: Annotated[
        str,
        Option("auto, cuda, cuda:0,1 or emulator.", metavar="NAME", panel=Panel.DEVICE, values=choices.devices),
    ] = "auto"
    target: TargetName = "l4"
    arch: Arch = ""
    workers: Workers = 0
    accept: Annotated[
        float | None,
        Option(
            "Minimum relative speed-up needed to replace the champion. [default: as in search]",
            min=0.0,
            max=1.0,
            metavar="SHARE",
            panel=Panel.ACCEPTANCE,
        ),
    ] = None
    inputs_seed: Annotated[
        int | None,
        Option("Seed for the inputs used by the parity gate. [default: a fresh one]", min=0, panel=Panel.ACCEPTANCE),
    ] = None
    db: Database = DEFAULT_DB

    def __post_init__(self) -> None:
        check_fields(self)
        if self.device.startswith("replay"):
            raise UsageError("a replay has no source to change: choose cuda or emulator")

    @property
    def search(self) -> SearchOptions:
        """Options of the ordinary search of the family and of each variant."""
        return SearchOptions(
            self.problem,
            budget=self.candidates,
            family=self.family,
            strategy=self.strategy,
            seed=self.seed,
            device=self.device,
            target=self.target,
            arch=self.arch,
            workers=self.workers,
            accept=self.accept,
            inputs_seed=self.inputs_seed,
            racing=False,  # the archive compares whole times, those of slow variants too
            energy=False,
            db=self.db,
        )


@dataclass(frozen=True)
class LineageOptions:
    """Options of ``lineage``."""

    reference: Annotated[
        str,
        Option(
            "Variant such as mma~1a2b3c4d, or row: best, rank:N or an id. [default: all variants]",
            metavar="ID",
            positional=True,
        ),
    ] = ""
    patch: Annotated[bool, Option("Print the patch of the variant.")] = False
    db: Database = DEFAULT_DB
