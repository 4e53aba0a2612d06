"""Variants, attempts and their tree in the leaderboard; what another program damaged is left out."""

from __future__ import annotations

import cProfile
import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.leaderboard.copying import copy_leaderboard
from evoengine.leaderboard.records import Scope, utc_now
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variant_tree import TreeNode, variant_trees
from evoengine.leaderboard.variants import Attempt, StoredVariant
from evoengine.model import Edit, NewTunable, Patch, Variant

SCOPE = Scope("1x1x64x64-fp16", "emulator", "NVIDIA L4", "sm_89", True, "model-v4")
OTHER = replace(SCOPE, problem="1x1x32x64-fp16")


def variant(*texts: str) -> Variant:
    edits = tuple(Edit("mma/kernel.cu.jinja", text, f"{text} // new") for text in texts)
    return Variant("mma", Patch(edits, (NewTunable("NEW", (False, True), False),), f"changes {' '.join(texts)}"))


PARENT, CHILD, MATE = variant("a"), variant("a", "b"), variant("c")
ATTEMPTS = (
    Attempt("base", "mma", 0, "tuned", variant="mma", best_us=5.0, row_id=1, features={"registers": 64.0}),
    Attempt("recorded", "mma", 0, "tuned", variant=PARENT.name, parent_us=5.0, best_us=4.0, row_id=2, candidates=3),
    Attempt("random", "mma", 1, "gate", variant=MATE.name, reason="parity_failed: wrong", text_hash="t"),
    Attempt("crossover", PARENT.name, 0, "tuned", variant=CHILD.name, best_us=4.5, row_id=3, seconds=1.5),
    Attempt("configs", PARENT.name, 0, "tuned", variant=PARENT.name, best_us=3.5, row_id=4),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A leaderboard with three variants and five attempts."""
    path = tmp_path / "board.db"
    with Leaderboard(path) as board:
        board.variants.add(PARENT, "recorded", ("mma",), "a-file")
        board.variants.add(MATE, "random", ("mma",))
        board.variants.add(CHILD, "crossover", (PARENT.name, MATE.name))
        board.variants.add(replace(CHILD, patch=replace(CHILD.patch, summary="another")), "swap", ("mma",))
        for attempt in ATTEMPTS:
            board.variants.add_attempt(SCOPE, attempt)
        board.variants.add_attempt(OTHER, ATTEMPTS[0])
    return path


def test_what_is_stored_is_read_again(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert copy_leaderboard(str(file), str(copy)).rows["evo_variants"] == 3
    for path in (file, copy):
        with Leaderboard(path, create=False) as board:
            found = {one.name: one for one in board.variants.all()}
            assert {name: one.variant for name, one in found.items()} == {
                one.name: one for one in (PARENT, CHILD, MATE)
            }, "the first one is kept"
            assert (found[CHILD.name].operator, found[CHILD.name].parents) == ("crossover", (PARENT.name, MATE.name))
            assert (found[PARENT.name].origin, found[MATE.name].origin) == ("a-file", "")
            assert tuple(board.variants.attempts(SCOPE)) == ATTEMPTS
            assert board.variants.attempts(OTHER) == [ATTEMPTS[0]]
            assert len(board.variants.attempts()) == 6
            assert board.variants.find("mma~00000000") is None
            profile = cProfile.Profile()
            assert profile.runcall(board.variants.find, CHILD.name) == found[CHILD.name]
            counts = {
                entry.code.co_name: entry.callcount for entry in profile.getstats() if hasattr(entry.code, "co_name")
            }
            assert counts["_variant"] == 1, "a leaderboard may have variants of any number, and each row needs one"


@pytest.mark.parametrize(
    ("statement", "value", "variants", "attempts"),
    [
        ("UPDATE evo_variants SET patch_json = ? WHERE operator = 'recorded'", "[", 2, 5),
        ("UPDATE evo_variants SET patch_json = ? WHERE operator = 'recorded'", '{"edits": 3}', 2, 5),
        (
            "UPDATE evo_variants SET patch_json = ? WHERE operator = 'recorded'",
            json.dumps({"edits": [{"file": "f", "search": "a", "replace": "evil"}], "tunables": []}),
            2,
            5,
        ),
        ("UPDATE evo_variants SET operator = ? WHERE operator = 'recorded'", b"x", 2, 5),
        ("UPDATE evo_variant_parents SET parent = ? WHERE number = 1", b"x", 2, 5),
        ("UPDATE evo_attempts SET features_json = ? WHERE id = 1", '{"a": "b"}', 3, 4),
        ("UPDATE evo_attempts SET best_us = ? WHERE id = 1", "fast", 3, 4),
        ("UPDATE evo_attempts SET candidates = ? WHERE id = 1", 1.5, 3, 4),
        ("UPDATE evo_attempts SET best_us = ? WHERE id = 1", 0.0, 3, 4),
        ("UPDATE evo_attempts SET best_us = ? WHERE id = 1", -1.0, 3, 4),
        ("UPDATE evo_attempts SET parent_us = ? WHERE id = 1", math.inf, 3, 4),
        ("UPDATE evo_attempts SET features_json = ? WHERE id = 1", '{"wavefronts": -5}', 3, 4),
        ("UPDATE evo_attempts SET features_json = ? WHERE id = 1", '{"registers": NaN}', 3, 4),
        ("UPDATE evo_attempts SET features_json = ? WHERE id = 1", '{"tensor_share": 1e308}', 3, 4),
    ],
)
def test_damaged_rows_are_left_out(file: Path, statement: str, value: object, variants: int, attempts: int) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(statement, (value,))
    with Leaderboard(file, create=False) as board:
        assert len(board.variants.all()) == variants
        assert len(board.variants.attempts(SCOPE)) == attempts


def flat(tree: TreeNode) -> list[tuple[int, str, float | None, int | None]]:
    return [(depth, node.name, node.time_us, node.row_id) for depth, node in tree.walk()]


def test_the_tree_has_the_best_time_of_each_variant_and_the_reason_of_a_failure(file: Path) -> None:
    with Leaderboard(file, create=False) as board:
        (tree,) = variant_trees(board.variants.all(), board.variants.attempts(SCOPE))
    nodes = {node.name: node for _, node in tree.walk()}
    assert sorted(flat(tree)) == [
        (0, "mma", 5.0, 1),
        *sorted([(1, PARENT.name, 3.5, 4), (1, MATE.name, None, None)]),
        (2, CHILD.name, 4.5, 3),
    ]
    assert nodes[MATE.name].failure == "gate: parity_failed: wrong"
    assert nodes[CHILD.name].other_parents == (MATE.name,)
    around = tree.around(CHILD.name)
    assert around is not None
    assert [name for _, name, _, _ in flat(around)] == ["mma", PARENT.name, CHILD.name]
    assert tree.around("mma~00000000") is None
    assert variant_trees((), ATTEMPTS) == ()


def test_a_long_line_of_descent_is_divided_into_trees() -> None:
    line = [variant(str(number)) for number in range(400)]
    stored = [
        StoredVariant(one, "random", "", (parent,), utc_now())
        for one, parent in zip(line, ["mma", *(one.name for one in line)], strict=False)
    ]
    trees = variant_trees(stored, [])
    assert [len(flat(tree)) for tree in trees] == [151, 151, 101]
    assert [trees[0].name, trees[1].name, trees[2].name] == ["mma", line[149].name, line[299].name]
    assert {name for tree in trees for _, name, _, _ in flat(tree)} == {"mma", *(one.name for one in line)}


def test_a_variant_that_is_its_own_ancestor_ends_its_branch(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE evo_variant_parents SET parent = ? WHERE variant = ?", (CHILD.name, PARENT.name))
    with Leaderboard(file, create=False) as board:
        (tree,) = variant_trees(board.variants.all(), [])
    assert [name for _, name, _, _ in flat(tree)] == ["mma", MATE.name], "neither is below the family any more"
