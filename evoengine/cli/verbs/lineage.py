"""``lineage``: the tree of variants, and the patch of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from evoengine.cli.output.console import make_console, print_json
from evoengine.documents.escaping import printable_lines
from evoengine.engine.options.evolution import LineageOptions
from evoengine.engine.options.verbs import RowChoice
from evoengine.engine.rows.queries import find_record
from evoengine.errors import NothingFoundError, UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.variant_tree import TreeNode, variant_trees
from evoengine.model import Patch, is_variant


def run_lineage(options: LineageOptions, *, json_output: bool) -> None:
    """Prints the trees of all variants, or the ancestors and descendants of one.

    Raises:
        UsageError: There is no such variant or row, or ``--patch`` names none.
        NothingFoundError: The leaderboard has no variants.
    """
    with Leaderboard(database_url(options.db), create=False) as board:
        stored = {one.name: one for one in board.variants.all()}
        if not stored:
            raise NothingFoundError(f"{board.name}: no variants yet: 'evolve' makes some")
        name = _name_of(board, options)
        trees = variant_trees(stored.values(), board.variants.attempts())
    if name:
        trees = tuple(found for tree in trees if (found := tree.around(name)) is not None)
        if not trees:
            raise UsageError(f"{database_name(options.db)}: no variant of or named {name}: 'lineage' lists all")
    patch = None
    if options.patch:
        if name not in stored:
            raise UsageError("--patch: name a variant, such as mma~1a2b3c4d; 'lineage' lists them")
        patch = stored[name].variant.patch
    if json_output:
        print_json({"trees": [_document(tree) for tree in trees], "patch": _patch_document(patch)})
        return
    console = make_console()
    for tree in trees:
        for line in _lines(tree, name):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if patch is not None:
        console.print(printable_lines(patch_text(patch)), markup=False, highlight=False, soft_wrap=True)


def _name_of(board: Leaderboard, options: LineageOptions) -> str:
    """Returns the family or variant that a reference names; empty for all."""
    reference = options.reference
    if not reference or is_variant(reference):
        return reference
    return find_record(board, RowChoice(reference, None), options.db).record.row.family


def _lines(node: TreeNode, marked: str, indent: str = "", joint: str = "") -> Iterator[str]:
    yield f"{indent}{joint}{_label(node)}{'  <' if node.name == marked else ''}"
    below = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[joint]
    for number, child in enumerate(node.children, 1):
        yield from _lines(child, marked, below, "└─ " if number == len(node.children) else "├─ ")


def _label(node: TreeNode) -> str:
    """Returns one printable line about a node."""
    parts = [node.name]
    if node.time_us is not None:
        parts.append(f"{node.time_us:.3f} us (row {node.row_id})")
    if node.operator:
        parts.append(node.operator)
    if node.other_parents:
        parts.append(f"with {', '.join(node.other_parents)}")
    parts += [text for text in (node.summary, node.failure) if text]
    return " ".join(printable_lines("  ".join(parts)).splitlines())


def patch_text(patch: Patch) -> str:
    """Returns a patch as SEARCH/REPLACE blocks, with its tunables."""
    blocks = []
    for edit in patch.edits:
        search, replacement = (
            text if text.endswith("\n") or not text else f"{text}\n" for text in (edit.search, edit.replace)
        )
        blocks.append(f"{edit.file}\n<<<<<<< SEARCH\n{search}=======\n{replacement}>>>>>>> REPLACE")
    for tunable in patch.tunables:
        rule = f", if {tunable.constraint}" if tunable.constraint else ""
        blocks.append(f"tunable {tunable.name} of {list(tunable.values)}, by default {tunable.default}{rule}")
    return "\n\n".join(blocks)


def _document(node: TreeNode) -> dict[str, Any]:
    own = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.name != "children"}
    return {**own, "children": [_document(child) for child in node.children]}


def _patch_document(patch: Patch | None) -> dict[str, Any] | None:
    return None if patch is None else dataclasses.asdict(patch)
