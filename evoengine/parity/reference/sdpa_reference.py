"""The yardstick: attention in the problem's own precision by PyTorch on the CPU, which shows what rounding alone costs.

The CPU is used on every device, so that one candidate gets one verdict everywhere. The only importer of torch here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType, Problem
from evoengine.parity.float_bits import Bits, Real
from evoengine.parity.inputs.row_sample import Block, Sample
from evoengine.parity.reference.fp64_attention import block_sinks, block_spans, block_tensors

if TYPE_CHECKING:
    import torch

_MASKED: Final = float("-inf")


def attention_same_precision(inputs: AttentionInputs, sample: Sample) -> Real:
    """PyTorch's SDPA, or its steps one by one where SDPA knows no softcap.

    A sink is one more key, of zeros with a value of zeros, whose logit is given by an additive mask.

    Returns:
        float64 ``[n, head_dim]``, each value one of the dtype; rows that see no key are zero.
    """
    return np.concatenate([_block(inputs, block) for block in sample.blocks])


def _block(inputs: AttentionInputs, block: Block) -> Real:
    import torch  # lazily: a second of import time

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
        result = _with_softcap(problem, q, k, v, mask)
    else:
        q, k, v = (tensor[None, None] for tensor in (q, k, v))
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0, 0]
    out[seen] = result.to(torch.float64).numpy()
    return out


def _tensor(bits: Bits, dtype: DType) -> torch.Tensor:
    import torch

    kind = torch.float16 if dtype is DType.FP16 else torch.bfloat16
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(kind)


def _mask(first: np.ndarray, end: np.ndarray, keys: int) -> torch.Tensor:
    """0 where a row sees a key, else -inf: float32 ``[rows, keys]``."""
    import torch

    numbers = np.arange(keys)
    hidden = (numbers < first[:, None]) | (numbers >= end[:, None])
    return torch.zeros(len(first), keys).masked_fill_(torch.from_numpy(hidden), _MASKED)


def _with_softcap(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """FlashAttention's ``attention_ref(upcast=False)``: each step is rounded to the dtype, the scores too.

    That also is the precision of the ``tanh`` that GPUs have in hardware: its relative error is half a step of fp16.
    """
    scores = (q * problem.softmax_scale) @ k.T
    capped = (scores / problem.softcap).tanh() * problem.softcap
    weights = (capped.float() + mask).softmax(dim=1).to(v.dtype)
    return weights @ v
