"""``space --check``: prints what each tunable of a family changes in its kernels."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.echo import echo_error
from evoengine.engine.checks.tunable_effects import FamilyCheck, TunableEffect
from evoengine.engine.checks.tunables import THOROUGH_BASES, check_family
from evoengine.engine.families import wanted_spaces
from evoengine.engine.options.verbs import SpaceOptions
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.target import get_target


def run_check(options: SpaceOptions, *, json_output: bool) -> bool:
    """Compiles configs of families that differ in one tunable, and prints what each tunable changes.

    Returns:
        Whether every tunable has an effect.

    Raises:
        UsageError: A family or the target is unknown, or a file is malformed.
        ProblemError: A family supports the problem on no known GPU.
    """
    notes = make_console(stderr=True)
    spaces = wanted_spaces(options.check or "", options.space_file)
    target, cache_dir = get_target(options.target), usable_cache_dir()
    checks = [
        check_family(space, options.problem, target, cache_dir, bases=THOROUGH_BASES, progress=notes.print)
        for space in spaces
    ]
    if json_output:
        print_json({"families": [_check_document(check) for check in checks]})
    else:
        for check in checks:
            _print_check(check)
    for line in (error for check in checks for error in check.errors):
        echo_error(line)
    return not any(check.errors for check in checks)


def _print_check(check: FamilyCheck) -> None:
    console = make_console()
    problems = ", ".join(problem.key for problem in check.problems)
    title = f"family {check.space.family} on {check.target.marketing_name} ({check.target.arch}): {problems}"
    console.print(title, style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("tunable", no_wrap=True)
    table.add_column("changes", no_wrap=True)
    table.add_column("pairs", justify="right", no_wrap=True)
    table.add_column("shown by", overflow="fold")
    for found in check.effects:
        table.add_row(found.tunable.name, found.effect.value, str(found.pairs), _evidence(found))
    print_table(console, table)
    for found in check.effects:
        for group in found.alike:
            values = ", ".join(map(str, group))
            console.print(
                f"hint: {found.tunable.name}: the values {values} were the same kernel wherever compared", markup=False
            )


def _evidence(found: TunableEffect) -> str:
    """The pair that shows an effect: the values, its problem, and the tunables that had to change too."""
    if found.shown_by is None or found.problem is None:
        return found.reason
    first, second = found.shown_by.values
    coupled = ", ".join(found.shown_by.coupled)
    together = f", together with {coupled}, to which a constraint couples it" if coupled else ""
    return f"{first} and {second} for {found.problem.key}{together}"


def _check_document(check: FamilyCheck) -> dict[str, Any]:
    return {
        "family": check.space.family,
        "target": check.target.name,
        "problems": [problem.key for problem in check.problems],
        "tunables": [
            {
                "name": found.tunable.name,
                "changes": found.effect.name.lower(),
                "pairs": found.pairs,
                "values": list(found.values),
                "shown_by": None if found.shown_by is None else list(found.shown_by.values),
                "coupled": [] if found.shown_by is None else list(found.shown_by.coupled),
                "problem": None if found.problem is None else found.problem.key,
                "alike": [list(group) for group in found.alike],
                "reason": found.reason,
            }
            for found in check.effects
        ],
        "errors": list(check.errors),
    }
