"""Archive and credit: cells, islands, novelty, parents, turns of the controls."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from evoengine.evolution.archive import Archive
from evoengine.evolution.counters import cell_of
from evoengine.evolution.credit import BASE, next_operators, statistics
from evoengine.leaderboard.variants import Attempt

FEATURES = {"tensor_share": 0.2, "wavefronts": 1000.0, "registers": 100.0, "instructions": 5000.0}


def attempt(
    name: str, time_us: float | None, *, island: int = 0, operator: str = "recorded", **features: float
) -> Attempt:
    return Attempt(
        operator=operator,
        parent="mma",
        island=island,
        stage="gate" if time_us is None else "tuned",
        variant=name,
        parent_us=10.0,
        best_us=time_us,
        row_id=None if time_us is None else 1,
        features=FEATURES | features,
        text_hash=f"text {name}",
        code_hash=f"code {name}",
    )


ATTEMPTS = (
    attempt("mma", 10.0, operator=BASE),
    attempt("mma~1", 9.0, instructions=4000.0),
    attempt("mma~2", 8.0, island=1, instructions=3000.0),
    attempt("mma~3", 11.0, instructions=6000.0, registers=200.0),
    attempt("mma~4", None),
    attempt("mma~5", 12.0, instructions=7000.0),
)


def test_a_cell_keeps_its_fastest_member_and_the_family_is_on_every_island() -> None:
    archive = Archive.of(ATTEMPTS, "mma", 2)
    assert cell_of(FEATURES) != cell_of(FEATURES | {"registers": 200.0}) != cell_of(None)
    assert [one.name for one in archive.on(0)] == ["mma~1", "mma~3"], "mma~1 took the family's cell"
    assert [one.name for one in archive.on(1)] == ["mma~2"]
    assert archive.ranked[0].name == "mma~2"
    assert [one.name for one in Archive.of(ATTEMPTS[:1], "mma", 3).on(2)] == ["mma"]


def test_equal_counters_are_no_novelty_unless_faster() -> None:
    slower = attempt("mma~6", 9.5, island=2, instructions=4000.0)
    other, faster = replace(slower, features=FEATURES), replace(slower, best_us=7.0)
    assert [one.name for one in Archive.of((*ATTEMPTS, slower), "mma", 3).on(2)] == ["mma"]
    assert [one.name for one in Archive.of((*ATTEMPTS, other), "mma", 3).on(2)] == ["mma~6"]
    assert Archive.of((*ATTEMPTS, faster), "mma", 3).ranked[0].name == "mma~6"
    archive = Archive.of((*ATTEMPTS, slower), "mma", 3)
    assert (archive.same_text("text mma~6"), archive.same_code("code mma~6")) == ("mma~6", "mma~6")
    assert (archive.same_text("text mma~9"), archive.same_code("")) == ("", "")
    assert archive.tried == {"mma", *(f"mma~{number}" for number in range(1, 7))}, "the rejected mma~4 too"


def test_parents_come_from_cells_and_ranks_of_the_island_and_now_and_then_from_others() -> None:
    archive = Archive.of(ATTEMPTS, "mma", 2)
    rng = random.Random(0)
    drawn = Counter(archive.parent(0, rng).name for _ in range(400))
    assert drawn.keys() == {"mma~1", "mma~2", "mma~3"}
    assert drawn["mma~2"] < 60 < drawn["mma~3"] < drawn["mma~1"]
    picks = archive.picks("mma~1", random.Random(0))
    assert [one.name for one in picks] == ["mma~2", "mma~3"]


def test_every_fourth_proposal_is_a_controls_and_success_earns_turns() -> None:
    names = ("recorded", "crossover", "random", "parent")
    done: list[Attempt] = [ATTEMPTS[0]]
    order = []
    for _ in range(16):
        chosen = next_operators(names, done)[0]
        order.append(chosen)
        done.append(attempt("x", 9.0 if chosen == "crossover" else None, operator=chosen))
    assert order[3::4] == ["random", "parent", "random", "parent"]
    assert Counter(order)["crossover"] > Counter(order)["recorded"] >= 1
    assert next_operators(("random", "parent"), done[:2]) == ("random",), "the whole budget is the control's"
    stats = {one.operator: one for one in statistics(done)}
    assert "base" not in stats
    assert stats["crossover"].faster == stats["crossover"].proposals == Counter(order)["crossover"]
    assert stats["crossover"].best_gain == 10.0 / 9.0 - 1
    assert (stats["recorded"].correct, stats["random"].best_gain) == (0, 0.0)
