"""Layouts of Q, K, V and O in memory: the axis order of each tensor, and gaps that belong to no element.

A buffer holds the elements in memory order, from the first to the last one; what would follow the last one is outside
the buffer. Examples, as gaps in elements:

* Q as a slice of packed QKV ``[batch, rows, heads + 2 kv_heads, head_dim]``: order ``bshd``, row gap ``2 kv_heads *
  head_dim``;
* K as a prefix of a cache ``[batch, kv_heads, capacity, head_dim]``: order ``bhsd``, head gap ``(capacity - rows) *
  head_dim``.

An axis may be expanded, as by ``torch.Tensor.expand``: its stride is 0, so that all of its entries are the first one.
The buffer has the size that it would have otherwise, with poison in place of the other entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.abi import Strides

Bits = NDArray[np.uint16]
"""Bit patterns of fp16 or bf16 elements; NumPy has no bf16."""

AxisOrder = Literal["bhsd", "bshd"]
"""Axis order in memory: batch, heads, rows, head_dim, or batch, rows, heads, head_dim."""

Axis = Literal["batch", "head", "row"]
AXES: Final[tuple[Axis, ...]] = ("batch", "head", "row")
"""Axes with strides."""

_Element = TypeVar("_Element", bound=np.generic)

Shape = tuple[int, int, int, int]
"""Logical shape ``(batch, heads, rows, head_dim)``."""

POISON_BITS: Final = 0x7FED
"""NaN that fills gaps, and an output before a launch, in fp16 and bf16. Hardware generates 0x7FFF, never this."""

_ALIGNMENT: Final = 8
"""Strides are multiples of this many elements: kernels read rows in pieces of 16 bytes."""


@dataclass(frozen=True)
class TensorLayout:
    """Axis order of one tensor, and the elements between its rows, heads and batch entries that are not its own."""

    order: AxisOrder = "bhsd"
    row_gap: int = 0
    """Elements after each row (of all heads, in the order ``bshd``)."""
    head_gap: int = 0
    """Elements after each head (of one row, in the order ``bshd``)."""
    batch_gap: int = 0
    """Elements after each batch entry."""
    expanded: tuple[Axis, ...] = ()
    """Axes with a stride of 0."""

    def __post_init__(self) -> None:
        if any(gap < 0 or gap % _ALIGNMENT for gap in (self.row_gap, self.head_gap, self.batch_gap)):
            raise ValueError(f"gaps must be multiples of {_ALIGNMENT} elements, not those of {self}")

    @property
    def dense(self) -> bool:
        """Whether there are neither gaps nor expanded axes."""
        return not self.expanded and self.row_gap == self.head_gap == self.batch_gap == 0

    def strides(self, shape: Shape) -> Strides:
        """Returns the element strides of (batch, head, row) of a tensor, 0 for expanded axes."""
        batch, head, row = self._apart(shape)
        return (
            0 if "batch" in self.expanded else batch,
            0 if "head" in self.expanded else head,
            0 if "row" in self.expanded else row,
        )

    def _apart(self, shape: Shape) -> Strides:
        """Returns the strides as if no axis were expanded."""
        _, heads, rows, dim = shape
        if self.order == "bhsd":
            row = dim + self.row_gap
            head = rows * row + self.head_gap
            return heads * head + self.batch_gap, head, row
        head = dim + self.head_gap
        row = heads * head + self.row_gap
        return rows * row + self.batch_gap, head, row

    def elements(self, shape: Shape) -> int:
        """Returns the size of a tensor's buffer, which ends with its last element."""
        if 0 in shape:
            return 0
        return shape[3] + sum((size - 1) * stride for size, stride in zip(shape[:3], self._apart(shape), strict=True))

    def view(self, memory: NDArray[_Element], shape: Shape) -> NDArray[_Element]:
        """Returns the logical view of a flat buffer."""
        strides = tuple(stride * memory.itemsize for stride in (*self.strides(shape), 1))
        return np.lib.stride_tricks.as_strided(memory, shape, strides)

    def place(self, tensor: Bits) -> Bits:
        """Returns a flat buffer with the elements of a logical tensor, and poison in the gaps.

        Only the first entry of an expanded axis is stored.
        """
        if self.dense:
            axes = (0, 1, 2, 3) if self.order == "bhsd" else (0, 2, 1, 3)
            return np.ascontiguousarray(tensor.transpose(axes)).reshape(-1)
        batch, heads, rows, dim = tensor.shape
        memory = np.full(self.elements((batch, heads, rows, dim)), POISON_BITS, np.uint16)
        stored = tuple(slice(1 if axis in self.expanded else None) for axis in AXES)
        self.view(memory, (batch, heads, rows, dim))[stored] = tensor[stored]
        return memory

    def gap_mask(self, shape: Shape) -> NDArray[np.bool_]:
        """Returns which elements of a tensor's buffer lie in a gap."""
        mask = np.ones(self.elements(shape), np.bool_)
        self.view(mask, shape)[...] = False
        return mask

    def place_before(self, index: int, shape: Shape) -> str:
        """Describes the element after which a gap's element lies."""
        names = dict(zip(("batch", "head", "row"), zip(shape[:3], self.strides(shape), strict=True), strict=True))
        found = []
        for name in ("batch", "head", "row") if self.order == "bhsd" else ("batch", "row", "head"):
            size, stride = names[name]
            number = min(index // stride, size - 1)
            index -= number * stride
            found.append(f"{name} {number}")
        return ", ".join(found)


@dataclass(frozen=True)
class CallLayout:
    """Layouts of the four tensors of a call."""

    q: TensorLayout
    k: TensorLayout
    v: TensorLayout
    o: TensorLayout

    def __post_init__(self) -> None:
        if self.o.expanded:
            raise ValueError(f"O cannot be expanded, as in {self.o}: several results would share an element")

    @classmethod
    def dense(cls, order: AxisOrder) -> CallLayout:
        """Returns four dense layouts of one axis order."""
        return cls(*(TensorLayout(order) for _ in range(4)))


DENSE: Final = CallLayout.dense("bhsd")
"""Layouts of contiguous ``[batch, heads, rows, head_dim]`` tensors."""
