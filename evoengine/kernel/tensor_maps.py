"""Tensor maps: the second kernel argument of families that copy with TMA (``cp.async.bulk.tensor``).

A map describes one tensor of a call and the box of it that one copy moves. ``template.toml`` declares the maps of a
family, see :class:`MapSpec`. Only the CUDA driver can encode a map, so this module computes its *geometry*, and each
launcher encodes it. Source of the rules: CUDA driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evoengine.errors import LaunchError
from evoengine.model import DType, Problem
from evoengine.runtime import map_encoding

MAP_BYTES: Final = map_encoding.MAP_BYTES
MapTensor = Literal["q", "k", "v", "o"]
Swizzle = Literal[0, 32, 64, 128]
"""Span in bytes of the permutation of a box's rows in shared memory; 0 for none."""
MOST_BOX_ROWS: Final = 256
MOST_KEPT: Final = 64
"""Number of encoded arguments that a launcher keeps."""

_UNIT_BYTES: Final = 16
"""Addresses, strides and the rows of a box are multiples of this."""
_MOST_STRIDE_BYTES: Final = 1 << 40


@dataclass(frozen=True)
class MapSpec:
    """Map of one tensor, for every problem that the binary serves."""

    tensor: MapTensor
    box_rows: int
    box_columns: int
    """Elements of ``head_dim``."""
    swizzle_bytes: Swizzle
    grouped: bool = False
    """Whether a box holds all query heads that share a K/V head, for as many rows as fit into ``box_rows``."""

    def objection(self, element_bytes: int) -> str:
        """Returns why no box of this size can be copied, naming the key of ``[[maps]]``; empty if it can."""
        row_bytes = self.box_columns * element_bytes
        widest = self.swizzle_bytes or MOST_BOX_ROWS * element_bytes
        if not 1 <= self.box_rows <= MOST_BOX_ROWS:
            return f"box_rows: is {self.box_rows}, a box has 1 to {MOST_BOX_ROWS} rows"
        if row_bytes < 1 or row_bytes % _UNIT_BYTES:
            return f"box_columns: is {self.box_columns}, a row of {row_bytes} bytes, not a multiple of {_UNIT_BYTES}"
        if row_bytes > widest:
            swizzle = f"a swizzle of {self.swizzle_bytes} bytes" if self.swizzle_bytes else "no swizzle"
            return f"box_columns: is {self.box_columns}, a row of {row_bytes} bytes; with {swizzle} at most {widest}"
        return ""


@dataclass(frozen=True)
class TensorMapGeometry:
    """Arguments of ``cuTensorMapEncodeTiled`` for one tensor; see :func:`evoengine.runtime.map_encoding.map_axes`.

    Elements outside the tensor are read as zero and not written.
    """

    address: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    """Strides of all axes but the first, ``head_dim``."""
    box: tuple[int, ...]
    element: DType
    swizzle_bytes: int


Encode = Callable[[TensorMapGeometry], bytes]
"""Returns the :data:`MAP_BYTES` bytes of a map."""


def map_geometries(specs: tuple[MapSpec, ...], problem: Problem, params: np.ndarray) -> tuple[TensorMapGeometry, ...]:
    """Returns the maps of a call.

    Args:
        specs: Maps of the launch.
        problem: Problem of the call.
        params: Parameter block of the call, with the addresses and strides of its tensors.

    Raises:
        LaunchError: An address or a stride is not a multiple of 16 bytes, or a stride is too large.
    """
    return tuple(_geometry(spec, problem, params) for spec in specs)


def _geometry(spec: MapSpec, problem: Problem, params: np.ndarray) -> TensorMapGeometry:
    name, element_bytes = spec.tensor, problem.dtype.bytes
    queries = name in ("q", "o")
    rows = problem.rows_q if queries else problem.rows_kv
    heads = problem.heads if queries else problem.kv_heads
    group = heads // problem.kv_heads if spec.grouped else 0
    if group > spec.box_rows:
        raise LaunchError(
            f"no tensor map of {name.upper()}: a box of {spec.box_rows} rows does not hold the {group} heads that "
            "share a K/V head"
        )
    row, head, batch = (int(params[f"{name}_{axis}_stride"]) * element_bytes for axis in ("row", "head", "batch"))
    sizes = (problem.head_dim, rows, heads, problem.memory_batch)
    axes = map_encoding.map_axes(sizes, (row, head, batch), spec.box_rows, spec.box_columns, group)
    address, steps = int(params[name]), axes.strides_bytes
    if address % _UNIT_BYTES or any(step % _UNIT_BYTES or step >= _MOST_STRIDE_BYTES for step in steps):
        raise LaunchError(
            f"no tensor map of {name.upper()}: address {address:#x} and strides {', '.join(map(str, steps))} bytes "
            f"must be multiples of {_UNIT_BYTES}, the strides below 2^40"
        )
    return TensorMapGeometry(address, axes.sizes, steps, axes.box, problem.dtype, spec.swizzle_bytes)


def encode_maps(specs: tuple[MapSpec, ...], problem: Problem, params: np.ndarray, encode: Encode) -> np.ndarray:
    """Returns the second argument of a call, ``TensorMaps``.

    Args:
        specs: Maps of the launch, at least one.
        problem: Problem of the call.
        params: Parameter block of the call.
        encode: Encodes one map.

    Returns:
        0-d structured array with one field of :data:`MAP_BYTES` bytes per map.

    Raises:
        LaunchError: See :func:`map_geometries`.
    """
    argument = np.zeros((), [(spec.tensor, f"V{MAP_BYTES}") for spec in specs])
    for spec, geometry in zip(specs, map_geometries(specs, problem, params), strict=True):
        argument[spec.tensor] = np.void(encode(geometry))
    return argument


class MapArgumentCache:
    """Second arguments of one kernel's calls of one problem; each is encoded once and kept.

    Args:
        specs: Maps of the launch, at least one.
        problem: Problem of all calls.
        encode: Encodes one map.
    """

    def __init__(self, specs: tuple[MapSpec, ...], problem: Problem, encode: Encode) -> None:
        self._specs, self._problem, self._encode = specs, problem, encode
        self._kept: dict[bytes, np.ndarray] = {}

    def of(self, params: np.ndarray) -> np.ndarray:
        """Returns the argument for a parameter block; see :func:`encode_maps`."""
        key = params.tobytes()
        found = self._kept.get(key)
        if found is None:
            found = encode_maps(self._specs, self._problem, params, self._encode)
            if len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found
        return found
