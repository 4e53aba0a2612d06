"""Compares statements of the pages with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from evoengine.cli import exit_codes as exits
from evoengine.model import Status
from evoengine.search.event_log import NAMES
from evoengine.search.strategies.forecast_sampler import FORECAST
from evoengine.search.strategies.offspring import RANDOM_SAMPLE
from evoengine.search.strategies.registry import STRATEGIES
from evoengine.search.strategies.sampler import START
from tests.cli.calling import ROOT, Evo
from tests.cli.conftest import cache, evo, evo_in
from tests.report.boards import H200, L4, fill, open_board

__all__ = ["cache", "evo", "evo_in"]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def test_the_page_of_the_shell_names_every_event_and_exit_code() -> None:
    text = page("shell.md")
    assert {event for event in NAMES.values() if f"`{event}`" not in text} == set()
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    told = set(map(int, re.findall(r"^\| (\d+) \|", text, re.MULTILINE)))
    assert told == codes - {exits.BROKEN_PIPE}


def test_the_page_of_landscapes_has_the_options_and_defaults_of_every_strategy() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", page("landscapes.md"), re.MULTILINE))
    for name in STRATEGIES:
        options = import_module(f"evoengine.search.strategies.builtin.{name}").STRATEGY.options
        told = dict(re.findall(r"`(\w+)` \(([^)]+)\)", rows[name]))
        assert told == {field.name: str(field.default) for field in fields(options)}


def test_the_page_of_the_leaderboard_names_every_status_and_move() -> None:
    text = page("leaderboard.md")
    assert {status.value for status in Status if f"`{status.value}`" not in text} == set()
    for move in (START.move, FORECAST.move, RANDOM_SAMPLE.move, "one change", "linked changes", "crossover"):
        assert f"`{move}`" in text


@pytest.mark.parametrize("name", ["tutorial.md", "leaderboard.md"])
def test_rankings_that_are_shown_have_the_columns_of_today(evo: Evo, tmp_path: Path, name: str) -> None:
    with open_board(tmp_path) as board:
        fill(board, H200)
        board.set_energy(24, 900.0)
        fill(board, L4)
    printed = {" ".join(line.split()) for line in evo("leaderboard").out.splitlines() if line.startswith("rank")}
    shown = re.findall(r"^rank .*$", page(name), re.MULTILINE)
    assert shown
    assert {" ".join(line.split()) for line in shown} <= printed
