"""Records of bulk copies between global and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evoengine.emulator.arrays import Array


@dataclass(frozen=True)
class BulkAccess:
    """Regions of shared memory that one bulk copy instruction accesses, one per issuing thread."""

    ctas: Array
    lanes: Array
    """Issuing threads."""
    first: Array
    """First byte of each region."""
    size: int
    site: int


@dataclass(frozen=True)
class Reduction:
    """How a bulk reduction combines what it copies with global memory."""

    operation: str
    kind: str
    """PTX type of the elements."""
    code: str
    """Dtype code of the elements."""


@dataclass(frozen=True)
class Transfer:
    """Copies that one instruction issues, one row for each issuing thread, all of the same size.

    ``remote`` and ``local`` are the addresses of the copied words in global and in shared memory, ``[rows, n]``;
    ``local`` has one row if all are equal. ``inside`` marks the words within the bounds of the tensor.
    """

    ctas: Array
    """Rows of the CTAs in their batch."""
    lanes: Array
    first: Array
    """First byte in shared memory."""
    size: int
    """Bytes of each copy."""
    word: int
    """Bytes of a word."""
    remote: Array
    local: Array
    inside: Array | None
    site: int
    reduction: Reduction | None = None
    """None for a copy that replaces global memory."""

    @property
    def access(self) -> BulkAccess:
        return BulkAccess(self.ctas, self.lanes, self.first, self.size, self.site)

    def only(self, keep: Array) -> Transfer:
        """The rows of a bool or index array."""
        return replace(
            self,
            ctas=self.ctas[keep],
            lanes=self.lanes[keep],
            first=self.first[keep],
            remote=self.remote[keep],
            local=self.local if len(self.local) == 1 else self.local[keep],
            inside=None if self.inside is None else self.inside[keep],
        )
