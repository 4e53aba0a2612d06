"""``space``: what a search can vary, and what each constraint takes away."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from evoengine.cli.console import make_console, print_json, print_table
from evoengine.model import Problem
from evoengine.space.loader import find_space
from evoengine.target import get_target


def run_space(problem: Problem, family: str, file: Path | None, target_name: str, *, json_output: bool) -> None:
    """Prints the space of a family for one problem and target.

    Raises:
        UsageError: there is no such family or target, or the file is malformed.
    """
    space = find_space(str(file) if file else family)
    target = get_target(target_name)
    valid = space.build(problem, target)
    if json_output:
        print_json(
            {
                "family": space.family,
                "problem": problem.key,
                "target": target.name,
                "valid": valid.size,
                "combinations": valid.cartesian_size,
                "removed": dict(valid.removed),
                "tunables": [
                    {"name": t.name, "kind": t.kind, "values": list(t.values), "unit": t.unit, "doc": t.doc}
                    for t in space.tunables
                ],
            }
        )
        return
    console = make_console()
    console.print(f"{space.family}: {space.doc}", markup=False)
    table = Table(box=None, pad_edge=False)
    for name in ("tunable", "values", "unit", "meaning"):
        table.add_column(name, overflow="fold")
    for tunable in space.tunables:
        table.add_row(tunable.name, " ".join(map(str, tunable.values)), tunable.unit, tunable.doc)
    print_table(console, table)
    console.print(f"\n{problem.key} on {target.marketing_name}", style="bold", markup=False)
    for line in valid.summary():
        console.print(line, markup=False)
