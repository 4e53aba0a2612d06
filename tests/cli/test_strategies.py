"""``search --strategy`` from the command line: options, samplers of Optuna, and classes of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import Evo
from tests.landscape.making import RECORDED

SAMPLER = '''
class Uniform:
    """Draws unseen configs."""

    def __init__(self, spaces):
        pass

    def propose(self, view, rng):
        return view.seen.random_unseen(rng)
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "budget"),
    [
        ("evolution:elites=3", 20),
        ("optuna.samplers:NSGAIISampler", 60),  # more than its first population
        pytest.param("optuna.samplers:QMCSampler", 20, marks=pytest.mark.thorough),
        ("mine:Uniform", 20),
    ],
)
def test_a_search_with_the_strategy_reaches_its_budget(evo: Evo, tmp_path: Path, strategy: str, budget: int) -> None:
    (tmp_path / "mine.py").write_text(SAMPLER, "utf-8")
    done = evo("search", f"--device=replay:{RECORDED}", f"--budget={budget}", f"--strategy={strategy}", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["strategy"] == strategy
    assert found["evaluated"] == budget


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        ("magic", "unknown strategy 'magic'"),
        ("evolution:elite=3", "unknown option 'elite'"),
        ("optuna.samplers:Nothing", "'optuna.samplers' has no 'Nothing'"),
    ],
)
def test_an_unusable_strategy_is_a_usage_error(quick_evo: Evo, strategy: str, named: str) -> None:
    done = quick_evo("search", f"--device=replay:{RECORDED}", "--budget=60", f"--strategy={strategy}")
    assert done.code == 2
    assert named in done.err
