"""``space``: tunables and constraints of kernel families, and the number of valid configs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.engine.families import AUTO, Families, choose_families, wanted_spaces
from evoengine.engine.options.verbs import SpaceOptions
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.space.data_dirs import data_dirs
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Tunable
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target, get_target

_DEFAULT_FAMILY: Final = "mma"
_LARGE: Final = {10**12: "trillion", 10**9: "billion", 10**6: "million"}


def run_space(options: SpaceOptions, *, json_output: bool) -> None:
    """Prints the space of a family for one problem and target; for several families, a table.

    Raises:
        UsageError: A family or the target is unknown, or a file is malformed.
        ProblemError: None of several families supports the problem.
    """
    problem, target = options.problem, get_target(options.target)
    default = _DEFAULT_FAMILY if options.space_file is None else AUTO
    spaces = wanted_spaces(default if options.family is None else options.family, options.space_file)
    if len(spaces) > 1:
        _list(problem, target, choose_families(spaces, problem, target), json_output=json_output)
        return
    (space,) = spaces
    library = TemplateLibrary(*data_dirs("templates"))
    if space.family in library.families():
        library.load_for(space)  # a mistake in template.toml is reported here already
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


def space_lines(families: Families) -> Iterator[str]:
    """One line per family; for a single family also the share of configs that each constraint removes."""
    for family in families.taken:
        valid = family.valid
        yield f"space {family.name}: {_in_words(valid.size)} valid of {_in_words(valid.cartesian_size)} combinations"
    for left_out in families.left_out:
        yield f"left out: {left_out.reason}"
    if len(families.taken) == 1 and families.taken[0].valid.removed:
        valid = families.taken[0].valid
        shares = ((name, 100 * count.value / valid.cartesian_size) for name, count in valid.removed.items())
        yield "removed   " + ", ".join(f"{name} {share:.1f} %" for name, share in shares)


def _in_words(number: int) -> str:
    """A number with two digits and a word: ``3.4 billion``; numbers below a million in full."""
    for unit, word in _LARGE.items():
        if number >= unit:
            share = number / unit
            return f"{share:.1f} {word}" if share < 9.95 else f"{share:,.0f} {word}"
    return f"{number:,}"


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
    table.add_column("description", overflow="fold")
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
