"""Cheats and known mistakes, offered as generated kernels, are rejected; unchanged kernels are admitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.parity.mutants import MUTANTS
from evoengine.parity.mutants.mutant import Mutant, mutate
from tests.cheats.corpus import Cheat, cheats
from tests.cheats.judging import compiles, rejection, source_of, target_of

pytestmark = pytest.mark.slow

ALL = cheats()
ONLY_SOURCE = [cheat for cheat in ALL if all(defence.startswith("source") for defence in cheat.rejected_by)]
SAMPLE = [cheat for cheat in ALL if cheat not in ONLY_SOURCE][7::15]
"""Some cheats of each file: scripts/measure/cheats.py runs all."""
MUTANT_SAMPLE = [next(mutant for mutant in MUTANTS if mutant.setup == name) for name in ("scalar plain", "plain")]


def test_the_corpus_covers_every_defence_and_fits_the_templates() -> None:
    assert len(ALL) == len({cheat.name for cheat in ALL}) >= 120
    defences = {defence.split()[0] for cheat in ALL for defence in cheat.rejected_by}
    assert defences == {"source", "ptx", "emulator"}
    texts = {cheat.applied(source_of(cheat.setup)).text for cheat in ALL}
    assert len(texts) == len(ALL)


def test_every_mutant_fits_its_template() -> None:
    for mutant in MUTANTS:
        source = source_of(mutant.setup)
        assert mutate(source, mutant.edits).text != source.text


@pytest.mark.parametrize("cheat", SAMPLE, ids=lambda cheat: cheat.name)
@pytest.mark.every(2)
def test_a_cheat_compiles_and_is_rejected(cheat: Cheat) -> None:
    source = cheat.applied(source_of(cheat.setup))
    assert compiles(source, target_of(cheat.setup).arch) == ""
    assert rejection(source, cheat.setup).partition(":")[0] in cheat.rejected_by


@pytest.mark.parametrize("cheat", ONLY_SOURCE, ids=lambda cheat: cheat.name)
def test_a_source_is_screened_before_it_is_compiled(cheat: Cheat) -> None:
    assert rejection(cheat.applied(source_of(cheat.setup)), cheat.setup).partition(":")[0] in cheat.rejected_by


@pytest.mark.parametrize("mutant", MUTANT_SAMPLE, ids=lambda mutant: mutant.name)
@pytest.mark.every(2)
def test_a_mutant_offered_as_a_generated_kernel_is_rejected(mutant: Mutant) -> None:
    source = mutate(source_of(mutant.setup), mutant.edits)
    assert rejection(replace(source, untrusted=True), mutant.setup)


ALL_CASES = slice(None)
MEDIUM_CASES = slice(1, 4)
"""The cheap cases of a kernel that is slow on the emulator; CTAs have several pieces of work in each."""


@pytest.mark.parametrize(
    ("setup", "cases"),
    [
        ("scalar plain", ALL_CASES),
        pytest.param("hopper dynamic", MEDIUM_CASES, marks=pytest.mark.thorough),
        pytest.param("hopper dynamic", ALL_CASES, marks=pytest.mark.thorough),
    ],
)
def test_an_unchanged_kernel_is_admitted(setup: str, cases: slice) -> None:
    assert rejection(replace(source_of(setup), untrusted=True), setup, cases) == ""
