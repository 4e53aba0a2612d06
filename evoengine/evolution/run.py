"""Runs an evolution from its options: workers, operators, consent to stored variants, loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from evoengine.engine.options.evolution import CLASSIC_OPERATORS, MODEL_OPERATORS, EvolveOptions
from evoengine.engine.search_plan import make_plan
from evoengine.errors import UsageError
from evoengine.evolution.credit import RANDOM
from evoengine.evolution.loop import Evolution, EvolutionResult, EvolutionSettings
from evoengine.evolution.operators.config_moves import ConfigMoves
from evoengine.evolution.operators.random_edits import RandomEdits
from evoengine.evolution.operators.recombination import Crossover, RegionSwap, UnchangedParent
from evoengine.evolution.operators.recorded import SHIPPED, RecordedPatches, load_patches
from evoengine.evolution.records import Proposer
from evoengine.evolution.variant_searches import VariantSearches
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variants import Attempt
from evoengine.model import Variant, is_variant
from evoengine.search.events import Observer


def evolve(
    options: EvolveOptions,
    notify: Callable[[Attempt], object] = lambda _: None,
    observer: Observer | None = None,
    proposers: Sequence[Proposer] = (),
) -> EvolutionResult:
    """Evolves the source of one family; a call with the same options goes on where the last one ended.

    Args:
        options: Options of the evolution.
        notify: Receives each attempt when it is stored.
        observer: Receives the events of the ordinary searches.
        proposers: Further operators; one with the name of a classic operator replaces it.

    Raises:
        UsageError: An option is invalid, or the leaderboard has variants and ``options.variants`` is not set.
        EvoEngineError: The evolution cannot go on.
    """
    if is_variant(options.family) or "," in options.family or options.family == "auto":
        raise UsageError(f"--family {options.family}: name one family; its variants are found by themselves")
    plan = make_plan(options.search)
    with Leaderboard(database_url(options.db)) as board:
        variants = _consented(options, board)
        with closing(VariantSearches(plan, variants, board, observer)) as searches:
            settings = EvolutionSettings(
                options.budget, options.candidates, options.islands, options.seed, options.time_limit_s
            )
            operators = _operators(options, searches, proposers)
            return Evolution(settings, searches, board, operators, notify, wants_lines=bool(proposers)).run()


def _consented(options: EvolveOptions, board: Leaderboard) -> tuple[Variant, ...]:
    stored = board.variants.all()
    if stored and not options.variants:
        raise UsageError(
            f"{board.name} has {len(stored)} variants, whose patches come from the author of that file: read them with "
            "'lineage ID --patch' and give --variants, or give another --db"
        )
    return tuple(one.variant for one in stored if one.variant.family == options.family)


def _operators(options: EvolveOptions, searches: VariantSearches, proposers: Sequence[Proposer]) -> list[Proposer]:
    given = {one.name: one for one in proposers}
    folders = (SHIPPED,) if options.patches is None else (SHIPPED, options.patches)
    classic: dict[str, Callable[[], Proposer]] = {
        "recorded": lambda: RecordedPatches(load_patches(*folders)),
        "crossover": Crossover,
        "swap": lambda: RegionSwap(searches.regions),
        "configs": ConfigMoves,
        RANDOM: RandomEdits,
    }
    names = [name.strip() for name in options.operators.split(",")]
    for name in names:
        if name not in given and name in MODEL_OPERATORS:
            raise UsageError(f"operator '{name}' needs a model: choose some of {', '.join(CLASSIC_OPERATORS)}")
        if name not in given and name not in classic:
            raise UsageError(f"unknown operator '{name}': choose some of {', '.join(CLASSIC_OPERATORS)}")
    chosen = [given[name] if name in given else classic[name]() for name in dict.fromkeys(names)]
    return [*chosen, RandomEdits(), UnchangedParent()]
