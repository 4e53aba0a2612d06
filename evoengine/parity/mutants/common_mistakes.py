"""Mistakes that kernels of every family could make: strides, head groups, and lengths at the edges of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantEdit


@dataclass(frozen=True)
class Spelling:
    """How the kernel of one family writes the expressions that the mistakes replace."""

    prefix: str
    """Prefix of the mutants' names."""
    setup: str
    sequence: str
    """Index of the batch entry."""
    head: str
    """Index of the query head in addresses."""
    group_of: str
    """Dividend of the division by the group size."""
    tile_count: str
    """Number of key tiles."""
    keys: str
    """Number of visible keys."""
    tile: str
    """Keys in a tile."""
    uses: Mapping[str, int]
    """Occurrences of ``p.<key>``, for strides that occur more than once."""


_SELECTED: Final = (
    *("v-with-the-row-stride-of-k", "o-with-the-head-stride-of-q", "k-head-stride-from-sizes"),
    *("k-batch-stride-from-the-head-stride", "group-a-power-of-two", "last-tile-skipped-one-above-a-multiple"),
)
"""One mistake of each kind."""


def common_mutants(spelling: Spelling) -> tuple[Mutant, ...]:
    """Returns all mutants of this module."""
    return (*_stride_mutants(spelling), *_head_mutants(spelling), *_length_mutants(spelling))


def selected_mutants(spelling: Spelling) -> tuple[Mutant, ...]:
    """Returns one mutant of each kind, for families whose similar mutants another family covers."""
    names = {spelling.prefix + name for name in _SELECTED}
    return tuple(mutant for mutant in common_mutants(spelling) if mutant.name in names)


def _stride_mutants(spelling: Spelling) -> tuple[Mutant, ...]:
    """Returns kernels that take a stride from another tensor, or compute it from sizes."""
    names = []
    for tensor, other in (("v", "k"), ("o", "q")):
        for axis in ("row", "head", "batch"):
            stride = f"{tensor}_{axis}_stride"
            edit = MutantEdit(f"p.{stride}", f"p.{other}_{axis}_stride", spelling.uses.get(stride, 1))
            names.append((f"{tensor}-with-the-{axis}-stride-of-{other}", edit))
    for tensor, head, rows in (
        ("q", spelling.head, "p.seq_q"),
        ("k", "kv_head", "p.seq_kv"),
        ("v", "kv_head", "p.seq_kv"),
        ("o", spelling.head, "p.seq_q"),
    ):
        edit = MutantEdit(f" + {head} * p.{tensor}_head_stride", f" + {head} * (1LL * {rows} * Cfg::HEAD_DIM)")
        names.append((f"{tensor}-head-stride-from-sizes", edit))
    for tensor, heads in (("q", "p.heads"), ("k", "(p.heads / p.heads_per_kv_head)"), ("o", "p.heads")):
        stride = f"{spelling.sequence} * p.{tensor}_batch_stride"
        edit = MutantEdit(stride, f"{spelling.sequence} * ({heads} * p.{tensor}_head_stride)")
        names.append((f"{tensor}-batch-stride-from-the-head-stride", edit))
    return _mutants(spelling, "addresses", names)


def _head_mutants(spelling: Spelling) -> tuple[Mutant, ...]:
    """Returns kernels for two sequences, two K/V heads, or special group sizes only."""
    group = f"{spelling.group_of} / p.heads_per_kv_head"
    sequence = f"{spelling.sequence} * p.v_batch_stride"
    return _mutants(
        spelling,
        "addresses",
        [
            ("two-sequences-only", MutantEdit(sequence, f"({spelling.sequence} & 1) * p.v_batch_stride")),
            ("two-kv-heads-only", MutantEdit("kv_head * p.v_head_stride", "(kv_head & 1) * p.v_head_stride")),
            ("group-a-power-of-two", MutantEdit(group, f"{spelling.group_of} >> (31 - __clz(p.heads_per_kv_head))")),
            ("group-even", MutantEdit(group, f"{spelling.group_of} / max(1, p.heads_per_kv_head / 2 * 2)")),
        ],
    )


def _length_mutants(spelling: Spelling) -> tuple[Mutant, ...]:
    """Returns kernels that skip the last key tile at certain remainders of the number of keys."""
    keys, tile, count = spelling.keys, spelling.tile, spelling.tile_count
    wanted = (("one-below", f"{tile} - 1"), ("at", "0"), ("one-above", "1"))
    return _mutants(
        spelling,
        "keys",
        [
            (
                f"last-tile-skipped-{name}-a-multiple",
                MutantEdit(count, f"({count} - ({keys} > {tile} && {keys} % {tile} == {rest}))"),
            )
            for name, rest in wanted
        ],
    )


def _mutants(spelling: Spelling, breaks: str, rows: list[tuple[str, MutantEdit]]) -> tuple[Mutant, ...]:
    return tuple(Mutant(f"{spelling.prefix}{name}", breaks, spelling.setup, (edit,)) for name, edit in rows)
