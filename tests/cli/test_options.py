"""The options of all verbs: names, defaults and bounds are part of the interface; records become typer parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer

from evoengine.cli.app import root_command
from evoengine.cli.options.parameters import with_options
from evoengine.engine.options.fields import Option
from evoengine.engine.options.problem import ProblemOptions
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import ProblemError, UsageError
from evoengine.model import NAMED_PROBLEMS, DType, Problem
from tests.golden import assert_golden

EXPECTED = Path(__file__).with_name("options.txt")
"""One line per option: verb, names, default or ``required``, bounds."""


def described(command: Any, verb: tuple[str, ...] = ()) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name in {"install_completion", "show_completion"}:
            continue
        positional = parameter.param_type_name == "argument"
        names = parameter.metavar if positional else "/".join([*parameter.opts, *parameter.secondary_opts])
        default = "required" if parameter.required else f"= {parameter.default}"
        bounds = [getattr(parameter, side, None) for side in ("min", "max")]
        limits = "" if bounds == [None, None] else f" {bounds}"
        several = " several" if getattr(parameter, "multiple", False) or parameter.nargs != 1 else ""
        yield f"{' '.join(verb) or '(root)'} {names} {default}{limits}{several}"
    for name, child in getattr(command, "commands", {}).items():
        yield from described(child, (*verb, name))


def test_options_defaults_and_bounds_are_unchanged() -> None:
    lines = described(root_command())
    assert_golden(EXPECTED, "".join(f"{line}\n" for line in sorted(lines)))


def test_every_field_of_a_search_is_an_option_except_for_records() -> None:
    hints = get_type_hints(SearchOptions, include_extras=True)
    plain = {field.name for field in fields(SearchOptions) if not hasattr(hints[field.name], "__metadata__")}
    assert plain == {"workload"}


def test_an_effort_is_a_budget_and_a_budget_wins() -> None:
    assert [SearchOptions(effort=effort).candidates for effort in ("quick", "normal", "thorough")] == [50, 500, 2000]
    assert SearchOptions().candidates == 500
    assert SearchOptions(effort="thorough", budget=7).candidates == 7
    assert replace(SearchOptions(budget=7), effort="quick", budget=None).candidates == 50
    with pytest.raises(UsageError, match=r"'fast'.*quick, normal, thorough"):
        SearchOptions(effort="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"effort": []}, "effort .*list"),
        ({"effort": None}, "effort .*NoneType"),
        ({"time_limit_s": math.inf}, "time_limit_s "),
        ({"time_limit_s": math.nan}, "time_limit_s "),
        ({"time_limit_s": 10**400}, "time_limit_s "),
        ({"time_limit_s": 10**5000}, "time_limit_s "),
        ({"compile_limit_s": math.inf}, "compile_limit_s "),
        ({"budget": 10**5000}, "budget .* from 1 to "),
        ({"db": "a\0b"}, r"db must be a text without NUL .*'a\\x00b'$"),
        ({"strategy": "\ud800"}, r"strategy .*'\\ud800'$"),
        ({"space_file": Path("a\0b")}, r"space_file must be a Path without NUL .*'a\\x00b'$"),
    ],
)
def test_options_of_another_type_and_endless_ones_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SearchOptions(**changes)


@pytest.mark.parametrize(
    ("word", "expected"), [("5", 5.0), ("-5", -5.0), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0), ("1.5E+2", 150.0)]
)
def test_plain_numbers_are_read(word: str, expected: float) -> None:
    found: list[tuple[float, list[int]]] = []

    def verb(
        number: Annotated[float, Option("A number.")] = 0.0, many: Annotated[tuple[int, ...], Option("Whole.")] = ()
    ) -> None:
        found.append((number, list(many)))

    sample = typer.Typer()
    sample.command()(with_options(verb))
    command: Any = typer.main.get_command(sample)
    command(args=[f"--number={word}", "--many", "7", "--many=-7"], standalone_mode=False)
    command(args=[], standalone_mode=False, default_map={"number": 3})
    assert found == [(expected, [7, -7]), (3.0, [])]
    with pytest.raises(typer.TyperException):
        command(args=["--many", "7", "--many", "1_0"], standalone_mode=False)


@dataclass(frozen=True)
class Sample:
    required: Annotated[int, Option("A number.", min=1, names=("--number", "-n"))]
    flag: Annotated[bool, Option("Off by default.")] = False
    other_flag: Annotated[bool, Option("On by default.")] = True
    third_flag: Annotated[bool | None, Option("Neither by default.")] = None
    many: Annotated[tuple[str, ...], Option("Several texts.")] = ()
    internal: int = 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "2"], Sample(2)),
        (["--number=2", "--flag", "--no-other-flag"], Sample(2, flag=True, other_flag=False)),
        (["-n", "2", "--third-flag"], Sample(2, third_flag=True)),
        (["-n", "2", "--no-third-flag"], Sample(2, third_flag=False)),
        (["-n", "2", "--many", "a", "--many", "b"], Sample(2, many=("a", "b"))),
    ],
)
def test_a_record_is_built_from_the_command_line(words: list[str], expected: Sample) -> None:
    found: list[tuple[Sample, bool]] = []

    def verb(options: Sample, loud: Annotated[bool, Option("Louder.")] = False) -> None:
        found.append((options, loud))

    sample = typer.Typer()
    sample.command()(with_options(verb))
    command: Any = typer.main.get_command(sample)
    command(args=words, standalone_mode=False)
    command(args=[*words, "--loud"], standalone_mode=False)
    assert found == [(expected, False), (expected, True)]
    with pytest.raises(typer.TyperException):
        command(args=["-n", "0"], standalone_mode=False)


def test_the_options_of_a_problem_build_it() -> None:
    assert ProblemOptions().build() == SearchOptions().problem == NAMED_PROBLEMS["mission"]
    options = ProblemOptions("2x4x64x128", kv_heads=2, seq_kv=96, dtype="bf16", window="inf, 5", sink=True, lse=True)
    assert options.build() == Problem(2, 4, 64, 128, 2, 96, DType.BF16, window_right=5, sink=True, lse=True)
    packed = ProblemOptions("2x8x99x64", lengths="99,0", lengths_kv="7,300").build()
    assert (packed.lengths_q, packed.lengths_kv, packed.seq_kv) == ((99, 0), (7, 300), 300)
    for wrong, names in (
        (ProblemOptions(dtype="fp8"), "'fp8'"),
        (ProblemOptions(window="1,-2"), "--window '1,-2'"),
        (ProblemOptions(lengths="1,x"), "--lengths '1,x'"),
        (ProblemOptions("1x8x1x64", lengths="1", lengths_kv="1.5"), "--lengths-kv '1.5'"),
    ):
        with pytest.raises(ProblemError, match=names):
            wrong.build()
