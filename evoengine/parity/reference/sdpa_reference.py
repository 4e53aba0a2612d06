"""Same-precision reference: PyTorch's SDPA on the CPU in the problem's dtype, which shows the error of rounding alone.

The CPU is used for every device, so that a candidate's verdict does not depend on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType
from evoengine.parity.float_bits import Bits, Real
from evoengine.parity.reference.fp64_attention import block_sinks, block_spans, block_tensors
from evoengine.parity.reference.row_sample import Block, Sample

if TYPE_CHECKING:
    import torch

_MASKED: Final = float("-inf")


def attention_same_precision(inputs: AttentionInputs, sample: Sample) -> Real:
    """Computes attention with PyTorch's SDPA, or step by step with a softcap, which SDPA does not support.

    A sink is an additional key and value of zeros whose logit is set by an additive mask.

    Returns:
        float64 ``[n, head_dim]``, exactly representable in the dtype; rows without visible keys are zero.
    """
    return np.concatenate([_block(inputs, block) for block in sample.blocks])


def _block(inputs: AttentionInputs, block: Block) -> Real:
    import torch  # lazily: the import takes a second

    problem = inputs.problem
    first, end = block_spans(problem, block)
    seen = end > first
    out = np.zeros((len(first), problem.head_dim))
    if not seen.any():
        return out
    stretch = slice(int(first[seen].min()), int(end.max()))
    q_bits, k_bits, v_bits = block_tensors(inputs, block)
    q, k, v = (_tensor(bits, problem.dtype) for bits in (q_bits[seen], k_bits[stretch], v_bits[stretch]))
    mask: torch.Tensor | None = None
    if problem.masked or problem.softcap or problem.sink:
        mask = _mask(first[seen] - stretch.start, end[seen] - stretch.start, len(k))
    sinks = block_sinks(inputs, block)
    if mask is not None and sinks is not None:
        mask = torch.cat([mask, torch.from_numpy(sinks[seen]).float()[:, None]], dim=1)
        k, v = (torch.cat([tensor, torch.zeros_like(tensor[:1])]) for tensor in (k, v))
    if mask is not None and problem.softcap:
        result = _with_softcap(inputs, q, k, v, mask)
    else:
        q, k, v = (tensor[None, None] for tensor in (q, k, v))
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=inputs.softmax_scale)[
            0, 0
        ]
    out[seen] = result.to(torch.float64).numpy()
    return out


def _tensor(bits: Bits, dtype: DType) -> torch.Tensor:
    import torch

    kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(kind)


def _mask(first: np.ndarray, end: np.ndarray, keys: int) -> torch.Tensor:
    """Builds the additive mask, float32 ``[rows, keys]``: 0 for visible keys, -inf for hidden ones."""
    import torch

    numbers = np.arange(keys)
    hidden = (numbers < first[:, None]) | (numbers >= end[:, None])
    return torch.zeros(len(first), keys).masked_fill_(torch.from_numpy(hidden), _MASKED)


def _with_softcap(
    inputs: AttentionInputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Computes FlashAttention's ``attention_ref(upcast=False)``: each step, scores included, is rounded to the dtype.

    This matches the precision of the hardware's ``tanh``, whose relative error is half a step of fp16.
    """
    softcap = inputs.problem.softcap
    scores = (q * inputs.softmax_scale) @ k.T
    capped = (scores / softcap).tanh() * softcap
    weights = (capped.float() + mask).softmax(dim=1).to(v.dtype)
    return weights @ v
