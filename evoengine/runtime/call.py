"""Attention calls: shapes, strides and features, read from torch tensors and validated."""

from __future__ import annotations

import math
import numbers
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import torch

DTYPES: Final = {torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Element types that kernels support."""

_PARAMS: Final = struct.Struct("<4Q8q7if6Q2q4i2f")
"""``AttentionParams`` of templates/partials/core/params.cuh, in its order."""
PARAM_BYTES: Final = _PARAMS.size
POINTERS: Final = struct.Struct("<4Q")
"""The first four members: addresses of Q, K, V and O."""
EXTRAS: Final = struct.Struct("<6Q")
"""Addresses of lse, sink, cu_seqlens_q, cu_seqlens_kv, workspace and counters."""
EXTRAS_AT: Final = 128
"""Offset of :data:`EXTRAS` in bytes."""
_LOG2_E: Final = math.log2(math.e)
_ALIGNMENT: Final = 8
"""Strides are multiples of this many elements, so that rows are aligned to 16 bytes."""
_SMALLEST_SCALE: Final = 2.0**-126
"""Smallest normal f32, which stands for a scale of 0: kernels multiply it by scores of -inf, and 0 · -inf is NaN."""
_LARGEST_SCALE: Final = 2.0**127
"""Largest magnitude of scale and softcap: times log2(e) it is still finite in f32."""
_LARGEST_ARGUMENT: Final = 2.0**125
"""Largest magnitude of scale over softcap: tanh of any product with it is 0, 1 or -1, and kernels double it."""
_WIDEST_ROW: Final = 2**31
_WIDEST_WINDOW: Final = 2**30
_SHOWN: Final = 40
"""Maximum number of characters of a value in an error."""
_LONGEST_SEQUENCE: Final = 2**31
_TORCH_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Element types that kernels or torch's attention support."""

Strides = tuple[int, int, int]
"""Strides of (batch, head, row) in elements."""


@dataclass(frozen=True)
class Options:
    """Arguments of a call besides the tensors."""

    causal: bool = False
    window_left: int = -1
    """Visible keys before a row's diagonal; -1 for no limit."""
    window_right: int = -1
    """Visible keys after a row's diagonal; -1 for no limit."""
    softcap: float = 0.0
    scale: float | None = None
    lse: bool = False
    layout: str = "bhsd"
    max_seqlen_q: int = 0
    """Maximum query length of packed sequences; 0 if it must be read from ``cu_seqlens_q``."""
    max_seqlen_kv: int = 0
    """Maximum key length of packed sequences; 0 if it must be read from ``cu_seqlens_kv``."""


def read_options(given: dict[str, Any]) -> Options:
    """Returns the options among the arguments of ``attention``.

    Raises:
        TypeError: The window is not a pair; other options are checked by :func:`read_call`.
    """
    window = given["window"]
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window must be a pair such as (128, 0), None for no limit, not {_shown(window)}")
    left, right = (-1 if side is None else side for side in window)
    longest = (0 if given[name] is None else given[name] for name in ("max_seqlen_q", "max_seqlen_kv"))
    values = (given["causal"], left, right, given["softcap"], given["scale"], given["return_lse"], given["layout"])
    return Options(*values, *longest)


@dataclass(frozen=True)
class Call:
    """Properties of a call that determine kernel, grid and parameters."""

    dtype: str
    """``fp16``, ``bf16``, or torch's name of an unsupported type."""
    batch: int
    """Number of sequences."""
    heads: int
    kv_heads: int
    seq_q: int
    """Query length; the maximum of packed sequences."""
    seq_kv: int
    rows_q: int
    """Query rows in memory; of packed sequences, their total length."""
    rows_kv: int
    head_dim: int
    """Columns that kernels read: those of the tensors, which a launcher pads with zeros to a multiple of 8."""
    causal: bool
    window_left: int
    """-1 for no limit."""
    window_right: int
    softcap: float
    scale: float
    sink: bool
    lse: bool
    packed: bool

    @property
    def traits(self) -> tuple[str, int, bool, bool, bool, bool, bool, bool, bool]:
        """Properties that are compiled into a kernel."""
        left, right = self.window_left >= 0, self.window_right >= 0
        masks = (self.causal, left, right, self.softcap > 0, self.sink, self.lse, self.packed)
        return (self.dtype, self.head_dim, *masks)

    def params(self, q: Strides, k: Strides, v: Strides, o: Strides) -> bytes:
        """Packs the kernel parameters; all addresses are zero."""
        lse_batch = 0 if self.packed else self.heads * self.seq_q
        scale_log2 = self.scale * _LOG2_E
        factor = max(abs(scale_log2), _SMALLEST_SCALE)
        if self.softcap:
            factor = min(max(self.scale / self.softcap, -_LARGEST_ARGUMENT), _LARGEST_ARGUMENT)
        outer = [0 if self.packed and axis == 0 else strides[axis] for strides in (q, k, v, o) for axis in (0, 1)]
        return _PARAMS.pack(
            *(0, 0, 0, 0),
            *outer,
            *(strides[2] for strides in (q, k, v, o)),
            *(self.heads // self.kv_heads, self.seq_q, self.seq_kv, scale_log2),
            *(0, 0, 0, 0, 0, 0),
            *(lse_batch, self.rows_q),
            *(self.batch, self.heads, max(self.window_left, 0), max(self.window_right, 0)),
            *(self.softcap * _LOG2_E, factor),
        )


def read_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_kv: torch.Tensor | None,
    options: Options,
) -> Call:
    """Reads and validates a call.

    Raises:
        TypeError: An argument has another type.
        ValueError: The tensors do not match, or an option is invalid; both messages are one line.
    """
    _check_arguments(options, {"sink": sink, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv})
    _check_tensors(q, k, v, 4 if cu_seqlens_q is None else 3)
    packed = cu_seqlens_q is not None
    if packed != (cu_seqlens_kv is not None):
        raise ValueError("packed sequences need both cu_seqlens_q and cu_seqlens_kv")
    heads_at, rows_at = (1, 0) if packed else (1, 2) if options.layout == "bhsd" else (2, 1)
    heads, kv_heads = _head_counts(q, k, heads_at, options.layout)
    rows_q, rows_kv = int(q.shape[rows_at]), int(k.shape[rows_at])
    batch, seq_q, seq_kv = int(q.shape[0]), rows_q, rows_kv
    if cu_seqlens_q is not None and cu_seqlens_kv is not None:
        batch = _sequences(q, cu_seqlens_q, cu_seqlens_kv)
        seq_q = int(options.max_seqlen_q) or longest_sequence(cu_seqlens_q)
        seq_kv = int(options.max_seqlen_kv) or longest_sequence(cu_seqlens_kv)
    _check_sink(sink, q, heads)
    causal = bool(options.causal or options.window_right == 0)
    return Call(
        dtype=DTYPES.get(q.dtype, str(q.dtype)),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_kv=seq_kv,
        rows_q=rows_q,
        rows_kv=rows_kv,
        head_dim=-(-int(q.shape[-1]) // _ALIGNMENT) * _ALIGNMENT,
        causal=causal,
        window_left=int(options.window_left),
        window_right=-1 if causal else int(options.window_right),
        softcap=float(options.softcap),
        scale=q.shape[-1] ** -0.5 if options.scale is None else float(options.scale),
        sink=sink is not None,
        lse=bool(options.lse),
        packed=packed,
    )


def strides_of(tensor: torch.Tensor, call: Call, layout: str) -> Strides:
    """Returns the strides of (batch, head, row) in elements; 0 for the batch of packed tensors."""
    if call.packed:
        row, head, _ = tensor.stride()
        return 0, head, row
    batch, second, third, _ = tensor.stride()
    return (batch, second, third) if layout == "bhsd" else (batch, third, second)


@dataclass(frozen=True)
class CallStrides:
    """Strides of Q, K and V of a call, and their kinds."""

    patterns: tuple[str, ...]
    """Kind of each tensor's strides, see :func:`_stride_pattern`."""
    elements: tuple[Strides | None, ...] = field(compare=False)
    """Strides of each tensor; None if a launcher copies or pads it."""


def call_strides(tensors: tuple[torch.Tensor, ...], call: Call, layout: str) -> CallStrides:
    """Reads the strides of Q, K and V."""
    in_place = (one.shape[-1] == call.head_dim and readable_by_kernels(one, layout) for one in tensors)
    elements = tuple(
        strides_of(one, call, layout) if kept else None for one, kept in zip(tensors, in_place, strict=True)
    )
    patterns = (_stride_pattern(one, layout) for one in tensors)
    return CallStrides(tuple(text if kept else "" for text, kept in zip(patterns, elements, strict=True)), elements)


def _stride_pattern(tensor: torch.Tensor, layout: str) -> str:
    """Returns the axes of a tensor longer than 1 in memory order, such as ``bhsd`` or, of packed sequences, ``shd``.

    An axis is followed by ``+`` if it has gaps, and by ``0`` if its entries are one in memory.
    """
    axes = zip(tensor.stride(), tensor.shape, "shd" if tensor.dim() == 3 else layout, strict=True)
    dense, text = 1, ""
    for stride, size, name in sorted(axes):
        if size > 1:
            text = name + ("0" if stride == 0 else "" if stride == dense else "+") + text
            dense = stride * size or dense
    return text


def readable_by_kernels(tensor: torch.Tensor, layout: str) -> bool:
    """Returns whether kernels can access a tensor without a copy: last axis contiguous, rows aligned to 16 bytes."""
    *others, last = zip(tensor.shape, tensor.stride(), strict=True)
    if last[0] > 1 and last[1] != 1:
        return False
    row = 0 if tensor.dim() == 3 else 2 if layout == "bhsd" else 1
    return tensor.stride(row) < _WIDEST_ROW and all(stride % _ALIGNMENT == 0 for size, stride in others if size > 1)


def _check_arguments(options: Options, tensors: dict[str, object]) -> None:
    """Checks all arguments but Q, K and V: first their types, which callers choose freely, then the options' values."""
    for name, value in tensors.items():
        if value is not None:
            _check_tensor(name, value)
    for name in ("causal", "lse"):
        if not isinstance(getattr(options, name), (bool, int)):
            said = "return_lse" if name == "lse" else name
            raise TypeError(f"{said} must be True or False, not {_shown(getattr(options, name))}")
    for name in ("window_left", "window_right", "max_seqlen_q", "max_seqlen_kv"):
        if isinstance(getattr(options, name), bool) or not isinstance(getattr(options, name), numbers.Integral):
            raise TypeError(f"{name} must be a whole number, not {_shown(getattr(options, name))}")
    for name in ("softcap", "scale"):
        value = getattr(options, name)
        if not isinstance(value, numbers.Real) and not (value is None and name == "scale"):
            raise TypeError(f"{name} must be a number, not {_shown(value)}")
    if not isinstance(options.layout, str):
        raise TypeError(f"layout must be 'bhsd' or 'bshd', not {_shown(options.layout)}")
    check_options(options)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {_shown(value)}")
    if value.is_nested or value.is_quantized or value.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor: kernels and torch's attention take no other layout")


def _shown(value: object) -> str:
    """Returns the type of an argument, and its value if that is short."""
    text = ascii(value) if isinstance(value, (str, int, float)) else ""
    kind = type(value).__name__
    return f"{kind} {text}" if 0 < len(text) <= _SHOWN else kind


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, axes: int) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, tensor)
        if tensor.dtype not in _TORCH_DTYPES:
            raise ValueError(f"{name} is {tensor.dtype}: attention needs fp16, bf16, float32 or float64")
        if tensor.dim() != axes:
            want = "[rows, heads, head_dim] with cu_seqlens" if axes == 3 else "four axes, see layout"
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}: it must have {want}")
        if (tensor.dtype, tensor.device) != (q.dtype, q.device):
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, but q is {q.dtype} on {q.device}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have one shape, not {tuple(k.shape)} and {tuple(v.shape)}")
    if q.shape[-1] != k.shape[-1] or (axes == 4 and q.shape[0] != k.shape[0]):
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in batch and head_dim")
    if q.shape[-1] == 0:
        raise ValueError(f"q has the shape {tuple(q.shape)}: head_dim must be at least 1")


def check_options(options: Options) -> None:
    """Checks the values of a call's options, which have the right types.

    Raises:
        ValueError: One is invalid; the message is one line.
    """
    if options.layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout must be 'bhsd' or 'bshd', not {_shown(options.layout)}")
    for name, size in (("max_seqlen_q", options.max_seqlen_q), ("max_seqlen_kv", options.max_seqlen_kv)):
        if not 0 <= size < _LONGEST_SEQUENCE:
            raise ValueError(f"{name} must be a length below 2^31, not {_shown(size)}")
    for name, size in (("left", options.window_left), ("right", options.window_right)):
        if not -1 <= size < _WIDEST_WINDOW:
            raise ValueError(
                f"the window's {name} side must be None or a number from 0 to below 2^30, not {_shown(size)}"
            )
    if options.causal and options.window_right > 0:
        raise ValueError("a causal mask hides all keys after the diagonal: the window's right side must be None or 0")
    if not 0 <= options.softcap <= _LARGEST_SCALE:
        given = _shown(options.softcap)
        raise ValueError(f"softcap must be a positive number of at most 2^127, or 0 for none, not {given}")
    if options.scale is not None and not abs(options.scale) <= _LARGEST_SCALE:
        raise ValueError(f"scale must be a finite number of at most 2^127 in magnitude, not {_shown(options.scale)}")


def _head_counts(q: torch.Tensor, k: torch.Tensor, axis: int, layout: str) -> tuple[int, int]:
    heads, kv_heads = int(q.shape[axis]), int(k.shape[axis])
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(
            f"heads of Q ({heads}) must be a multiple of those of K and V ({kv_heads}); layout is {layout}"
        )
    return heads, kv_heads


def _sequences(q: torch.Tensor, starts_q: torch.Tensor, starts_kv: torch.Tensor) -> int:
    for name, starts in (("cu_seqlens_q", starts_q), ("cu_seqlens_kv", starts_kv)):
        if starts.dim() != 1 or starts.dtype != torch.int32 or starts.device != q.device or not starts.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32 [sequences + 1] on {q.device}")
    if starts_q.shape != starts_kv.shape or starts_q.shape[0] < 2:
        raise ValueError("cu_seqlens_q and cu_seqlens_kv must have one entry more than there are sequences")
    return int(starts_q.shape[0]) - 1


def longest_sequence(starts: torch.Tensor) -> int:
    """Returns the maximum length of packed sequences; synchronises with the device."""
    return int((starts[1:] - starts[:-1]).max())


def _check_sink(sink: torch.Tensor | None, q: torch.Tensor, heads: int) -> None:
    if sink is None:
        return
    if sink.shape != (heads,) or sink.dtype != torch.float32 or sink.device != q.device or not sink.is_contiguous():
        raise ValueError(f"sink must be contiguous float32 [{heads}] on {q.device}")
