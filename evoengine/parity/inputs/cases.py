"""Shapes of the parity cases: a few small ones that each exercise several features, cheap ones first.

Every case shares the properties that are compiled into a candidate: head_dim, dtype, mask kind, features. Window sizes,
softcap, softmax scale, lengths and strides are kernel arguments, so each case has its own. The cost of an emulated
launch depends on the instructions of one CTA more than on the number of CTAs, so each case covers several heads and
sequences.

Lengths. A kernel may be wrong only if a length is just below, at, or just above a multiple of its tile size. The
multiples in :class:`TileEdges` together are divisible by every tile size of the search spaces. A shape has
:data:`VARIANTS` variants, one per profile of a pool, which go through its multiples and the three steps -1, 0, +1. The
shapes of one draw are dealt over the steps (``CasePlan.phase``): every candidate is checked on all three steps for tile
sizes that divide 64, for query and for key lengths, a finalist on all variants (``CasePool.others``).

Windows. A guard that is wrong by one key shows only where the edge of a window, or the diagonal, lies at the border of
a tile of keys for a row at the border of a tile of queries. Wide windows of each variant are therefore enlarged by less
than 64 keys, so that their edges lie at one of :data:`_EDGE_PLACES`.

Strides. In every draw, some case has four different layouts, none of which follows from the shape or from another one:
Q as a slice of packed QKV, K and V as prefixes of longer caches, V in another axis order than K, O on its own, gaps
after rows, heads and batch entries. Other cases are dense; the problem's own case is. Finalists meet strides of 0.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.memory_layout import POISON_BITS, Axis, CallLayout, TensorLayout
from evoengine.model import Problem
from evoengine.parity.inputs.case import ParityCase, make_case
from evoengine.parity.inputs.profiles import CROWD, EXTREME, FAINT, PROFILES, make_inputs
from evoengine.parity.reference.row_sample import place_of

SINKS: Final = (8.0, -math.inf, 3.0, 100.0, 0.5, -3.0, -30.0, 1.5, -1e4, 6.0, 5.0)
"""Sink logits by head, in turn: near the log-sum-exp of some keys, none, below it, too large for exp, negligible but
where all logits are far below zero.

Eleven, so that neither a power of two nor a number of heads that share K and V is a period: detects the sink of a head
whose index lost bits, or of the head's place in its group.
"""

_EDGE_PERIOD: Final = 64
"""Tile sizes, or multiples of them, against which the edges of wide windows are placed."""

_EDGE_PLACES: Final = (-1, 0, 1, 9, 17, 2, 33, 41, 50)
"""Places by variant, modulo :data:`_EDGE_PERIOD`, of the first key in and the first key after the window of a query
tile's first row: around the borders of tiles of 8 keys or more."""

_WIDE_WINDOW: Final = 16
"""Windows with fewer keys on both sides keep their exact size."""

_MANY_KEYS: Final = 1024
_SEVERAL_TILES: Final = 512
_LONG_WINDOW: Final = 4
"""Factor on windows before the diagonal of a sequence with at least :data:`_MANY_KEYS` keys, and on wide ones after it
with at least :data:`_SEVERAL_TILES`: kernels may do work for hundreds of keys at once, or keep a window in few bits."""

_STEPS: Final = 3
"""Distances from a multiple of a tile size: one below, none, one above."""

_MANY_ROWS: Final = 1100
_MANY_SEQUENCES: Final = 260
_MANY_KV_HEADS: Final = 130
_WIDE_GROUP: Final = 60
"""Query heads that share K and V: nearly the 64 rows that a box of ``hopper`` holds, which packs them."""
_GROUPED_KEYS: Final = 1024
_FAINT_KEYS: Final = 2048
_FAINT_SINKS: Final = (-1e4, 3.0)
_LARGEST_TILE: Final = 256
"""Most query rows of a tile."""
_PIECE_ROWS: Final = _LARGEST_TILE + 4
_TALL_KEYS: Final = 20
_LARGE_GROUP: Final = 20
"""Query heads that share K and V: more than 16, and no divisor of a tile's rows."""
_EXTREME_KEYS: Final = 530
_EXTREME_SCALE: Final = -(2.0**-15)
"""With it, logits of the profile ``vast`` have a standard deviation of 2."""
_EXPANDED_KEYS: Final = 140
"""More than a tile of most kernels, so that offsets of tiles count."""
_QkvAxes = tuple[Axis, Axis, Axis]
_EXPANDED: Final[tuple[_QkvAxes, ...]] = (("row", "head", "batch"), ("head", "batch", "row"), ("batch", "row", "head"))
"""Expanded axes of Q, K and V in each of :func:`expanded_plans`."""
_PACKED_EXPANDED: Final[tuple[_QkvAxes, ...]] = (("row", "head", "row"), ("head", "row", "head"))
_CROWD_KEYS: Final = 512
_CROWD_ROWS: Final = 64
_WIDE_CROWD: Final = ("4-octaves-first", "14-octaves-late")
_RESIDUES: Final = ((2, 4), (4, 10), (6, 5), (8, 14), (10, 2), (12, 8), (14, 12), (5, 6))
"""Residues modulo 16 of queries and keys that no :class:`TileEdges` has."""
_GROUPS: Final = (4, 6, 7)
"""Query heads that share K and V, besides those of the other shapes."""
_ONE_ROW_KEYS: Final = 330
_HEAD_GROUP_BYTES: Final = 8 << 20

_STEEP_SCALE: Final = 24.0
_DEEP_SCALE: Final = 2.0**12
"""Softmax scale of the last of :func:`steep_cases` in base 2. Scores of the profile ``large`` are several hundred."""
_DEEP_SINKS: Final = (8.0, -1e8)
"""Its sink logits; the second one is below all logits."""

VARIANTS: Final = _STEPS**2
"""Variants of the lengths of each shape."""


@dataclass(frozen=True)
class TileEdges:
    """Lengths of one sequence near multiples of tile sizes."""

    queries: tuple[int, ...]
    """Multiples that the variants take in turn."""
    keys: tuple[int, ...]
    phases: tuple[int, int] = (0, 0)
    """Offsets of the steps of (queries, keys)."""

    def lengths(self, variant: int) -> tuple[int, int]:
        """Returns (queries, keys) of one variant."""
        turn, step = divmod(variant % VARIANTS, _STEPS)
        queries, keys = self.queries[turn % len(self.queries)], self.keys[turn % len(self.keys)]
        return queries + (step + self.phases[0]) % _STEPS - 1, keys + (step + self.phases[1]) % _STEPS - 1


def _dense_rows_first(_: Problem) -> CallLayout:
    """Four dense tensors whose rows lie outside their heads."""
    return CallLayout.dense("bshd")


def _all_different(problem: Problem) -> CallLayout:
    """Q sliced from packed QKV, K a prefix of a cache, V in the other axis order, O with gaps of its own."""
    dim = problem.head_dim
    return CallLayout(
        q=TensorLayout("bshd", row_gap=2 * problem.kv_heads * dim, batch_gap=24),
        k=TensorLayout("bhsd", row_gap=24, head_gap=45 * (dim + 24), batch_gap=8),
        v=TensorLayout("bshd", row_gap=16, head_gap=8, batch_gap=40),
        o=TensorLayout("bhsd", row_gap=8, head_gap=24, batch_gap=56),
    )


def _packed_qkv(problem: Problem) -> CallLayout:
    """Q, K and V sliced from ``[batch, rows, heads + 2 kv_heads, head_dim]``, O with gaps between its rows."""
    dim, heads, kv_heads = problem.head_dim, problem.heads, problem.kv_heads
    kv = TensorLayout("bshd", row_gap=(heads + kv_heads) * dim)
    return CallLayout(TensorLayout("bshd", row_gap=2 * kv_heads * dim), kv, kv, TensorLayout("bhsd", row_gap=dim))


def _caches(problem: Problem) -> CallLayout:
    """K and V as prefixes of caches of different capacity and axis order; O with its rows outside its heads."""
    dim, kv_heads = problem.head_dim, problem.kv_heads
    return CallLayout(
        q=TensorLayout("bhsd", head_gap=16),
        k=TensorLayout("bshd", head_gap=8, batch_gap=31 * kv_heads * dim),
        v=TensorLayout("bhsd", head_gap=83 * dim),
        o=TensorLayout("bshd", row_gap=8),
    )


@dataclass(frozen=True)
class CasePlan:
    """Shape of one small case."""

    name: str
    groups: tuple[int, ...]
    """Query heads per K/V head, which the variants take in turn."""
    kv_heads: int
    sequences: tuple[tuple[int, int] | TileEdges, ...]
    """(queries, keys) of each sequence; all equal unless the problem is packed."""
    first_profile: str
    """Profile best suited to detect errors in this shape; used for the first K/V head if there are several."""
    left: int
    """Window before the diagonal, if the problem has one; longer if there are many keys."""
    right: int
    """Window after the diagonal, if the problem has one; 0 would be a causal mask."""
    softcap: float
    scale: float
    """Approximate softmax scale, in units of the usual ``1/sqrt(head_dim)``, which only the problem's own case has."""
    layout: Callable[[Problem], CallLayout]
    alternates: bool = False
    """Whether the scale is negative in every other variant."""
    phase: int = 0
    """Shapes of different phase have different steps in one draw; see :func:`deal_profiles`."""

    def problem(self, like: Problem, variant: int) -> Problem:
        """Creates a variant's problem with the compiled-in properties of ``like``."""
        pairs = [one.lengths(variant) if isinstance(one, TileEdges) else one for one in self.sequences]
        queries, keys = zip(*pairs, strict=True)
        left, right = self._window(like, variant, *max(pairs, key=math.prod))
        return replace(
            like,
            batch=len(pairs),
            heads=self.kv_heads * self.groups[variant // _STEPS % len(self.groups)],
            kv_heads=self.kv_heads,
            seq_q=max(queries),
            seq_kv=max(keys),
            window_left=None if like.window_left is None else left,
            window_right=None if like.window_right is None else right,
            softcap=self.softcap if like.softcap else 0.0,
            lengths_q=queries if like.packed else (),
            lengths_kv=keys if like.packed else (),
        )

    def _window(self, like: Problem, variant: int, queries: int, keys: int) -> tuple[int, int]:
        """Returns the keys before and after the diagonal, enlarged to bring the edges of a wide window to their places.

        Row ``r`` sees the keys from ``r + keys - queries - left`` up to ``r + keys - queries + right``.
        """
        if max(self.left, self.right) < _WIDE_WINDOW:
            return self.left, self.right
        number = (variant + self.phase) % VARIANTS
        left, right = self.left * (_LONG_WINDOW if keys >= _MANY_KEYS else 1), self.right
        if keys >= _SEVERAL_TILES and right >= _WIDE_WINDOW:
            right *= _LONG_WINDOW
        if left:
            left += (keys - queries - left - _EDGE_PLACES[2 * number % VARIANTS]) % _EDGE_PERIOD
        if not like.causal:
            right += (_EDGE_PLACES[number] - (keys - queries + right + 1)) % _EDGE_PERIOD
        return left, right

    def case(self, like: Problem, number: int, seed: int) -> ParityCase:
        """Creates the case of one profile, with its reference results and bounds.

        Args:
            like: Problem with the compiled-in properties.
            number: Index of the profile of all K/V heads but the first, or of the only one.
            seed: Seed of the inputs; it also pairs variants with profiles.
        """
        profile = tuple(PROFILES)[number]
        profiles = (self.first_profile, profile) if self.kv_heads > 1 else (profile,)
        variant = (number + seed) % VARIANTS
        problem, sign = self.problem(like, variant), -1 if self.alternates and variant % 2 else 1
        scale = _hard_to_round(sign * self.scale * like.softmax_scale)
        inputs = make_inputs(problem, profiles, seed, self.layout(problem), SINKS, scale)
        _poison_unused_keys(inputs)
        return make_case(f"{self.name}/{profile}", inputs, seed)


def _poison_unused_keys(inputs: AttentionInputs) -> None:
    """Writes NaN to K and V of sequences without queries, on which no result may depend.

    They follow the keys of other sequences in memory, whose last tile may reach into them.
    """
    problem = inputs.problem
    for sequence, (queries, keys) in enumerate(problem.sequences):
        if queries == 0:
            place = place_of(problem, sequence)
            for tensor in (inputs.k, inputs.v):
                tensor[place.batch, :, place.first_key : place.first_key + keys] = POISON_BITS


def deal_profiles(plans: Sequence[CasePlan], rng: np.random.Generator) -> list[int]:
    """Draws the profile of each shape of one candidate, by index.

    All are different. Profiles whose indices are equal modulo 3 have variants of the same step, so shapes get profiles
    of one such group or another by their phase.
    """
    decks = [rng.permutation(range(first, len(PROFILES), _STEPS)).tolist() for first in range(_STEPS)]
    start = int(rng.integers(_STEPS))
    return [decks[(start + plan.phase) % _STEPS].pop() for plan in plans]


# One row, one key: all tail predicates at once; eight heads share the key. In half of the heads, many rows have only a
# large negative logit: a maximum that does not begin at -inf shows.
_SINGLE: Final = CasePlan("single", (8,), 2, ((1, 1),) * 3, "large", 0, 1, 5.0, 8.0, _all_different)
# Rows and keys of three batches, grouped heads, four different layouts: addressing.
_RAGGED: Final = CasePlan(
    "ragged",
    (1, 2, 1),
    2,
    (TileEdges((64,), (112, 160, 176), (2, 0)),) * 3,
    "offset",
    20,
    9,
    8.0,
    0.4,
    _all_different,
    alternates=True,
    phase=2,
)
# More queries than keys: swapped lengths, and rows without visible keys under a mask. No key before the diagonal.
# With scale 0 all visible keys have the same weight, and a product of the scale and a hidden score of -inf is NaN.
_FEW_KEYS: Final = CasePlan(
    "few-keys", (1,), 2, (TileEdges((128, 192, 512), (64,), (2, 0)),), "normal", 0, 40, 2.0, 0.0, _dense_rows_first
)
# Three or four key tiles of 128; peaky: the running maximum changes, so every rescale matters.
# With a negative scale the key with the smallest score has the largest logit.
_MULTI_TILE: Final = CasePlan(
    "multi-tile",
    (1,),
    2,
    (TileEdges((64,), (384, 576, 384), (2, 0)),),
    "peaky",
    200,
    77,
    15.0,
    -0.4,
    _packed_qkv,
    phase=1,
)
# As many rows as keys: query tiles that skip whole key tiles on both sides, and partially masked tiles at both edges.
# In one step the first row's keys end one before the border of a tile.
_MASKED_TILES: Final = replace(_MULTI_TILE, sequences=(TileEdges((384,), (384, 576, 384), (2, 0)),))
# A few rows of three or five heads, less than a tile; keys that splits share unevenly, some without any.
_DECODE: Final = CasePlan(
    "decode", (3, 5, 3), 3, (TileEdges((3,), (512, 512, 2048)),), "peaky", 400, 1, 64.0, 0.4, _caches, phase=2
)
# A window far smaller than a tile: one key more or less on a side has a large effect.
_NARROW: Final = CasePlan(
    "narrow", (1,), 2, (TileEdges((256,), (320,), (2, 0)),), "constant", 3, 5, 3.0, 2.0, _all_different, phase=1
)

# Packed: neighbouring sequences are adjacent in memory, and some sequences are empty. The first and the last one have
# keys but no queries: detects a sequence that is found by its rows alone. The last one's are more than a tile of keys
# holds past the end of the sequence before.
_LENGTHS: Final = CasePlan(
    "lengths",
    (2,),
    1,
    (
        (0, 30),
        (1, 1),
        (0, 0),
        TileEdges((32, 48, 80), (32, 48, 80)),
        TileEdges((64,), (64, 96, 112), (1, 0)),
        TileEdges((128,), (64,), (0, 1)),
        TileEdges((64,), (160, 176, 192), (2, 1)),
        TileEdges((64,), (128,), (0, 2)),
        (0, 150),
    ),
    "normal",
    40,
    11,
    5.0,
    2.0,
    _all_different,
)
_PACKED_RAGGED: Final = replace(_RAGGED, groups=(2,), sequences=((37, 83), (5, 11), (0, 9), (40, 0)))
_PACKED_FEW_KEYS: Final = replace(_FEW_KEYS, sequences=((1, 64), *_FEW_KEYS.sequences, (17, 129)))
_PACKED_TILES: Final = replace(_MULTI_TILE, sequences=((1, 70), *_MULTI_TILE.sequences, (33, 20)))
_PACKED_MASKED_TILES: Final = replace(_MULTI_TILE, sequences=((1, 70), *_MASKED_TILES.sequences, (33, 20)))
_PACKED_DECODE: Final = replace(_DECODE, sequences=((1, 33), *_DECODE.sequences, (0, 5), (2, 80)))
_PACKED_NARROW: Final = replace(_NARROW, sequences=(*_NARROW.sequences, (40, 90)))


def plans_for(problem: Problem) -> tuple[CasePlan, ...]:
    """Returns the shapes for the compiled-in properties of a problem, cheap ones first."""
    windowed = problem.window_left is not None or problem.window_right is not None
    if problem.packed:
        tiles = _PACKED_MASKED_TILES if problem.masked else _PACKED_TILES
        narrow = (_PACKED_NARROW,) if windowed else ()
        return (_SINGLE, _PACKED_FEW_KEYS, _PACKED_RAGGED, _LENGTHS, *narrow, tiles, _PACKED_DECODE)
    tiles = _MASKED_TILES if problem.masked else _MULTI_TILE
    narrow = (_NARROW,) if windowed else ()
    return (_SINGLE, _FEW_KEYS, _RAGGED, *narrow, tiles, _DECODE)


def steep_cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    """Returns cases with large softmax scales, which detect little else and are for finalists only.

    - Scores that differ little before they are scaled, and very much afterwards: detects a limit that is compared with
      unscaled scores. Nearly all weights are 0 or 1. The scale has either sign.
    - Logits of millions in rows of one key, below zero in half of them: detects a maximum that begins at a number above
      them, such as -1e6, and hidden keys whose logit is such a number. In base 2 the scale is a power of two, so that
      the scaled logits are exact: the weight of the one key would be rounded otherwise.
    """
    plan = replace(_PACKED_RAGGED if problem.packed else _RAGGED, name="steep", alternates=False)
    steep = [replace(plan, scale=scale).case(problem, 0, seed) for scale in (_STEEP_SCALE, -_STEEP_SCALE)]
    deep, scale = _SINGLE.problem(problem, seed % VARIANTS), _DEEP_SCALE * math.log(2.0)
    inputs = make_inputs(deep, _SINGLE.first_profile, seed, _SINGLE.layout(deep), _DEEP_SINKS, scale)
    return (*steep, make_case(f"deep/{_SINGLE.first_profile}", inputs, seed))


def large_plans(problem: Problem) -> tuple[CasePlan, ...]:
    """Returns shapes with more rows, sequences or heads than all others, for finalists.

    - 260 sequences, 260 heads, and 60 that share a K/V head: numbers of sequences or heads, or places within a group,
      that are taken modulo a power of two.
    - 8,800 rows share a K/V head: too many for a division by the number of heads with a reciprocal of 16 bits. On most
      GPUs they are several pieces of work for some CTAs, with a negative scale.
    - K and V take one head more than 8 MiB, the smallest size in ``HEAD_GROUP`` of the search spaces: the last group of
      heads whose tiles are computed together is smaller than the others. It needs two query tiles, of up to 256 rows,
      and a mask that lets one see more keys than the other.
    """
    plan = replace(_FEW_KEYS, name="many-rows", groups=(8,), kv_heads=1, sequences=((_MANY_ROWS, 9),), scale=-1.0)
    short = replace(plan, name="many-sequences", groups=(1,), sequences=((1, 3),) * _MANY_SEQUENCES)
    thin = replace(short, name="many-short-heads", groups=(2,), kv_heads=_MANY_KV_HEADS, sequences=((1, 3),))
    shared = replace(short, name="wide-group", groups=(_WIDE_GROUP,), sequences=((2, 3),))
    if problem.window_left is not None or not problem.masked:
        return (plan, short, thin, shared)
    heads = _HEAD_GROUP_BYTES // (4 * _GROUPED_KEYS * problem.head_dim) + 1
    wide = replace(plan, name="many-heads", groups=(1,), kv_heads=heads, sequences=((257, _GROUPED_KEYS),))
    return (plan, short, thin, shared, wide)


def pieces_plan(problem: Problem) -> CasePlan:
    """Returns a shape of several query tiles of several groups of heads of several sequences, for finalists.

    Tiles have up to 256 rows. Other shapes have several tiles, or several groups of heads and sequences: the number of
    a piece of work, or of a partial result, may be wrong only where it depends on all of them. Under a mask, rows of
    the first tile see keys, too.
    """
    keys = 140 if problem.masked else 20
    sequences = ((_PIECE_ROWS, keys),) * 2
    return replace(_RAGGED, name="pieces", groups=(2,), sequences=sequences, scale=-1.0, alternates=False)


def grouped_plan(problem: Problem) -> CasePlan:
    """Returns the shape of :attr:`CasePool.grouped <evoengine.parity.inputs.pool.CasePool.grouped>`."""
    plan = _PACKED_RAGGED if problem.packed else _RAGGED
    return replace(plan, name="grouped", groups=(2,), scale=-1.0, alternates=False)


def tall_plan() -> CasePlan:
    """Returns the shape of :attr:`CasePool.tall <evoengine.parity.inputs.pool.CasePool.tall>`."""
    return replace(_FEW_KEYS, name="tall", groups=(2,), kv_heads=1, sequences=((_PIECE_ROWS, _TALL_KEYS),), scale=1.0)


def expanded_plans(problem: Problem) -> tuple[CasePlan, ...]:
    """Returns shapes in which Q, K and V are expanded, each along one axis, which then has a stride of 0.

    Kernels may take such a stride for one that is not given, and compute it from sizes or from another stride. No
    tensor has two such axes, because a product with 0 would be right by chance.
    """
    plan = replace(_RAGGED, groups=(2,), sequences=((5, _EXPANDED_KEYS),) * 2, left=_EXPANDED_KEYS, alternates=False)
    return tuple(
        replace(plan, name=f"expanded-q-{q}-k-{k}-v-{v}", layout=_expanded(q, k, v))
        for q, k, v in (_PACKED_EXPANDED if problem.packed else _EXPANDED)
    )


def _expanded(q: Axis, k: Axis, v: Axis) -> Callable[[Problem], CallLayout]:
    def layout(_: Problem) -> CallLayout:
        tensors = (TensorLayout("bhsd", expanded=(q,)), TensorLayout("bhsd", expanded=(k,)))
        return CallLayout(*tensors, TensorLayout("bshd", expanded=(v,)), TensorLayout("bhsd"))

    return layout


def residue_plans(problem: Problem) -> tuple[CasePlan, ...]:
    """Returns shapes whose lengths are far from multiples of 16, for finalists.

    Lengths of all other shapes are next to such multiples: an error of, say, the last of five keys in a group of eight
    would not show. Several numbers of heads share K and V, among them those of common models. In the last shapes many
    heads do, and sequences have a single row, for which kernels may have another path.
    """
    plan = replace(_RAGGED, name="residues", groups=(1,), first_profile="constant")
    lengths = tuple((32 + queries, 80 + keys) for queries, keys in _RESIDUES)
    shared = replace(plan, name="large-group", groups=(_LARGE_GROUP,), kv_heads=1, sequences=lengths[:1])
    alone = replace(_DECODE, name="one-row", groups=_GROUPS[-1:], kv_heads=2, sequences=((1, _ONE_ROW_KEYS),) * 2)
    if problem.packed:
        grouped = zip(_GROUPS[:2], (lengths[::2], lengths[1::2]), strict=True)
    else:
        grouped = zip((1, *_GROUPS) * 2, ((one,) for one in lengths), strict=True)
    each = (replace(plan, groups=(group,), sequences=sequences) for group, sequences in grouped)
    return (*each, shared, alone)


def crowd_cases(problem: Problem, seed: int) -> tuple[ParityCase, ...]:
    """Returns cases of full query tiles in which one key leads in all rows, for finalists.

    The first has as many rows as a warp or warpgroup computes and all of :data:`CROWD`; the second has as many as the
    largest tile of a CTA.
    """
    plan = replace(_DECODE, name="crowd", groups=(1,), left=_CROWD_KEYS)
    found = []
    for rows, profiles in ((_CROWD_ROWS, tuple(CROWD)), (_LARGEST_TILE, _WIDE_CROWD)):
        shape = replace(plan, kv_heads=len(profiles), sequences=((rows, _CROWD_KEYS),)).problem(problem, 0)
        found.append(make_case("crowd", make_inputs(shape, profiles, seed, plan.layout(shape), _FAINT_SINKS), seed))
    return tuple(found)


def faint_case(problem: Problem, seed: int) -> ParityCase:
    """Returns a case of few rows, in which thousands of keys have little weight each, for finalists."""
    plan = replace(_DECODE, name="faint", groups=(2,), kv_heads=2, sequences=((3, _FAINT_KEYS),), left=_FAINT_KEYS)
    shape = plan.problem(problem, 0)
    return make_case("faint", make_inputs(shape, tuple(FAINT), seed, plan.layout(shape), _FAINT_SINKS), seed)


def extreme_case(problem: Problem, seed: int) -> ParityCase:
    """Returns a case with a tiny softmax scale of large scores, and with scores of zero, for finalists."""
    sequences = ((9, _EXTREME_KEYS),)
    plan = replace(_DECODE, name="extreme", groups=(1,), kv_heads=len(EXTREME), sequences=sequences, left=_EXTREME_KEYS)
    shape = plan.problem(problem, 0)
    scale = _hard_to_round(_EXTREME_SCALE * problem.softmax_scale)
    return make_case("extreme", make_inputs(shape, tuple(EXTREME), seed, plan.layout(shape), SINKS, scale), seed)


def _hard_to_round(scale: float) -> float:
    """Returns a number near ``scale`` that is inexact in 16 bits: a kernel must keep the scale in f32.

    fp16 rounds 0.17388 times any power of two by 0.03 %, and by 0.05 % after multiplication by log2(e); bf16 by 0.03 %
    and 0.3 %. The decode case detects an error of 0.05 % in fp16.
    """
    if scale == 0:
        return 0.0
    mantissa = 0.17388
    return math.copysign(mantissa * 2.0 ** round(math.log2(abs(scale) / mantissa)), scale)


def limited(problem: Problem, max_flops: int) -> Problem:
    """Returns the problem, or a slice of it that needs at most about ``max_flops``, masked pairs included.

    Sequences and heads are removed first, because they are independent of each other, then query rows. Masks are
    aligned bottom-right, so the last rows are kept, which attend to the most keys.
    """
    full = problem.heads * _pair_flops(problem)
    if full <= max_flops:
        return problem
    group = problem.heads // problem.kv_heads
    heads = group * max(1, min(problem.kv_heads, max_flops // max(1, group * _pair_flops(problem))))
    cut = _fewer_sequences(replace(problem, heads=heads, kv_heads=heads // group), max_flops)
    if heads * _pair_flops(cut) > max_flops and heads > 1:
        heads = min(group, max(1, max_flops // _pair_flops(cut)))
        cut = replace(cut, heads=heads, kv_heads=1)
    return _fewer_rows(cut, max_flops)


def _pair_flops(problem: Problem) -> int:
    """Computes the work of one head over all sequences."""
    return 4 * problem.head_dim * problem.pairs


def _fewer_sequences(problem: Problem, max_flops: int) -> Problem:
    """Removes the smallest sequences, all but one at most, until the work fits."""
    sequences = problem.sequences
    work = [4 * problem.head_dim * problem.heads * queries * keys for queries, keys in sequences]
    total, removed = sum(work), set()
    for index in sorted(range(len(work)), key=work.__getitem__)[:-1]:
        if total <= max_flops:
            break
        total -= work[index]
        removed.add(index)
    kept = [one for index, one in enumerate(sequences) if index not in removed]
    return _with_sequences(problem, kept)


def _fewer_rows(problem: Problem, max_flops: int) -> Problem:
    work = problem.heads * _pair_flops(problem)
    if work <= max_flops:
        return problem
    sequences = [(max(min(1, n), n * max_flops // work), keys) for n, keys in problem.sequences]
    return _with_sequences(problem, sequences)


def _with_sequences(problem: Problem, sequences: Sequence[tuple[int, int]]) -> Problem:
    queries, keys = zip(*sequences, strict=True)
    return replace(
        problem,
        batch=len(sequences),
        seq_q=max(queries),
        seq_kv=max(keys),
        lengths_q=queries if problem.packed else (),
        lengths_kv=keys if problem.packed else (),
    )


def problem_case(
    problem: Problem,
    seed: int,
    max_flops: int | None = None,
    profiles: Sequence[str] = (),
    part: Problem | None = None,
) -> ParityCase:
    """Creates the case of the problem itself, or of a slice of it, which is then named ``problem-slice``.

    Args:
        problem: Problem of the search.
        seed: Seed of the inputs.
        max_flops: Largest work of the case; None for no limit.
        profiles: Profiles of the inputs; empty for normal ones.
        part: Slice to use; None for the largest within ``max_flops``.
    """
    shape = part or (problem if max_flops is None else limited(problem, max_flops))
    name = "problem" if shape == problem else "problem-slice"
    sample_seed = seed ^ zlib.crc32("/".join(profiles).encode())  # the rechecks compare other rows and heads
    return make_case(name, make_inputs(shape, profiles or "normal", seed), sample_seed)
