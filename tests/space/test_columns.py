"""Columns of values for many configs, compared with the scope of each config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from evoengine.errors import SearchSpaceError
from evoengine.model import Problem
from evoengine.space.columns import Columns
from evoengine.space.language.rules import Derived
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target

PROBLEM, TARGET = Problem(2, 8, 300, 64, kv_heads=2, causal=True), get_target("h200")
MMA = find_space("mma")


def check(space: SearchSpace, names: Iterable[str]) -> None:
    """Checks that columns equal the scope of each config in value and type."""
    valid = space.build(PROBLEM, TARGET, overrides={space.tunables[0].name: space.tunables[0].values[1:]})
    rows = valid.sample_rows(np.random.default_rng(0), 60)
    columns = Columns(valid.book, names).of(rows)
    for place, row in enumerate(rows):
        scope = space.scope(valid.config_of(row).as_dict(), PROBLEM, TARGET)
        found = {name: columns[name][place].item() for name in names}
        assert found == {name: scope[name] for name in names}
        assert [type(value) for value in found.values()] == [type(scope[name]) for name in names]


@pytest.mark.parametrize("family", ["mma", "scalar", "wmma"])
def test_columns_equal_the_scope_of_each_config(family: str) -> None:
    space = find_space(family)
    check(space, [*space.by_name, *(item.name for item in space.derived), "head_dim", "causal"])


def with_derived(name: str, expr: str) -> SearchSpace:
    return replace(MMA, derived=(*MMA.derived, Derived(name, expr, "", "")))


def test_names_with_too_large_tables_are_computed() -> None:
    check(with_derived("MUCH", "SMEM_BYTES * SPLITS + MIN_CTAS * UNROLL + MAXRREGCOUNT"), ["MUCH", "SMEM_BYTES"])


@pytest.mark.parametrize("expr", ["1 // (UNROLL - 1)", "SMEM_BYTES // (UNROLL - 1) + SPLITS + MIN_CTAS"])
def test_errors_name_the_expression(expr: str) -> None:
    space = with_derived("BAD", expr)
    valid = space.build(PROBLEM, TARGET)
    with pytest.raises(SearchSpaceError, match=r"derived\.BAD\.expr: division by zero"):
        Columns(valid.book, ["BAD"]).of(valid.sample_rows(np.random.default_rng(0), 20))


def test_columns_of_no_configs_are_empty() -> None:
    valid = MMA.build(PROBLEM, TARGET)
    columns = Columns(valid.book, ["SMEM_BYTES", "UNROLL"]).of(np.zeros((0, len(valid.tunables)), np.uint8))
    assert {name: column.shape for name, column in columns.items()} == {"SMEM_BYTES": (0,), "UNROLL": (0,)}
