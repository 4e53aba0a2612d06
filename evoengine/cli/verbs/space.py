"""``space``: what a search can vary, and what each constraint takes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.engine.families import Families, choose_families, wanted_spaces
from evoengine.model import Problem
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target, get_target


def run_space(problem: Problem, family: str, file: Path | None, target_name: str, *, json_output: bool) -> None:
    """Prints the space of a family for one problem and target; of several, a list.

    Raises:
        UsageError: there is no such family or target, or the file is malformed.
        ProblemError: several families are asked for, and none can serve the problem.
    """
    spaces = wanted_spaces(family, file)
    target = get_target(target_name)
    if len(spaces) > 1:
        _list(problem, target, choose_families(spaces, problem, target), json_output=json_output)
        return
    (space,) = spaces
    valid = space.build(problem, target)
    if json_output:
        tunables = [_tunable_document(tunable) for tunable in space.tunables]
        print_json({**_document(problem, target, valid), "tunables": tunables})
        return
    console = make_console()
    console.print(f"{space.family}: {space.doc}", markup=False)
    _print_tunables(console, space)
    console.print(f"\n{problem.key} on {target.marketing_name}", style="bold", markup=False)
    for line in valid.summary():
        console.print(line, markup=False)


def _list(problem: Problem, target: Target, families: Families, *, json_output: bool) -> None:
    if json_output:
        print_json(
            {
                "families": [_document(problem, target, family.valid) for family in families.taken],
                "left_out": {family.name: family.reason for family in families.left_out},
            }
        )
        return
    console = make_console()
    console.print(f"{problem.key} on {target.marketing_name}", style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("family", no_wrap=True)
    for name in ("valid configs", "combinations", "tunables"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what varies", overflow="fold")
    for family in families.taken:
        sizes = (str(family.valid.count), f"{family.valid.cartesian_size:,}", str(len(family.space.tunables)))
        table.add_row(family.name, *sizes, family.space.doc)
    print_table(console, table)
    for left_out in families.left_out:
        console.print(f"left out: {left_out.reason}", markup=False)


def _print_tunables(console: Console, space: SearchSpace) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("tunable", "values", "unit", "meaning"):
        table.add_column(name, overflow="fold")
    for tunable in space.tunables:
        meaning = f"{tunable.doc} (when {tunable.when})" if tunable.when else tunable.doc
        table.add_row(tunable.name, " ".join(map(str, tunable.values)), tunable.unit, meaning)
    print_table(console, table)


def _document(problem: Problem, target: Target, valid: ValidSpace) -> dict[str, Any]:
    return {
        "family": valid.family,
        "problem": problem.key,
        "target": target.name,
        "valid": valid.size,
        "valid_error": valid.count.error,
        "combinations": valid.cartesian_size,
        "removed": {name: count.value for name, count in valid.removed.items()},
    }


def _tunable_document(tunable: Tunable) -> dict[str, Any]:
    return {
        "name": tunable.name,
        "kind": tunable.kind,
        "values": list(tunable.values),
        "unit": tunable.unit,
        "doc": tunable.doc,
        "when": tunable.when or None,
    }
