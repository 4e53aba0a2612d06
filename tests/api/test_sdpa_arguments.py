"""``attention`` with the arguments of torch's ``scaled_dot_product_attention``, in whose place it may stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import evoengine
from evoengine.runtime.call import Options
from tests.api.emulated import Emulated
from tests.api.test_launcher import assert_right, draw, emulated

__all__ = ["emulated"]
SDPA = torch.nn.functional.scaled_dot_product_attention
MASK = torch.rand(24, 40, generator=torch.Generator().manual_seed(3)) > 0.3
MASK[:, 0] = True


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs each test in a folder without a leaderboard, with empty caches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOENGINE_LEADERBOARD", raising=False)
    evoengine.forget()
    yield
    evoengine.forget()


def tensors(seq_q: int = 24, seq_kv: int = 40, kv_heads: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, seq_q, 32), (2, kv_heads, seq_kv, 32), (2, kv_heads, seq_kv, 32))
    return [torch.randn(shape, generator=generator) for shape in shapes]


CALLS: dict[str, tuple[list[torch.Tensor], tuple[Any, ...], dict[str, Any]]] = {
    "plain": (tensors(), (), {}),
    "is_causal": (tensors(24, 24), (), {"is_causal": True}),
    "is_causal, more keys": (tensors(24, 40), (), {"is_causal": True}),
    "is_causal, fewer keys": (tensors(40, 24), (), {"is_causal": True}),
    "boolean mask": (tensors(), (), {"attn_mask": MASK}),
    "float mask": (tensors(), (), {"attn_mask": MASK.float() * 2}),
    "mask of each head": (tensors(), (), {"attn_mask": MASK.expand(2, 4, 24, 40)}),
    "in order": (tensors(), (MASK, 0.0, False), {"scale": 0.3}),
    "in order, causal": (tensors(24, 24), (None, 0.0, True), {}),
    "dropout": (tensors(), (), {"dropout_p": 0.4}),
    "dropout, causal": (tensors(24, 24), (None, 0.4, True), {}),
    "grouped heads": (tensors(kv_heads=2), (), {"enable_gqa": True}),
    "grouped heads, mask": (tensors(kv_heads=2), (MASK,), {"enable_gqa": True}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_sdpa_gives_the_same(name: str) -> None:
    (q, k, v), positional, named = CALLS[name]
    results = []
    for function in (SDPA, evoengine.attention):
        torch.manual_seed(5)  # for dropout
        results.append(function(q, k, v, *positional, **named))
    torch.testing.assert_close(results[1], results[0])
    if not positional:
        torch.manual_seed(5)
        swapped = evoengine.attention(*(t.transpose(1, 2) for t in (q, k, v)), layout="bshd", **named)
        torch.testing.assert_close(swapped.transpose(1, 2), results[0])


def test_sdpas_parameters_stand_in_its_order() -> None:
    parameters = list(inspect.signature(evoengine.attention).parameters)
    assert parameters[:8] == ["q", "k", "v", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]


def test_a_model_whose_sdpa_is_replaced_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
    x, mask = torch.randn(2, 24, 64), torch.nn.Transformer.generate_square_subsequent_mask(24)
    called: list[Any] = []

    def ours(*args: Any, **kwargs: Any) -> Any:
        called.append(args)
        return evoengine.attention(*args, **kwargs)

    want = [layer(x), layer(x, src_mask=mask), layer(x, src_mask=mask, is_causal=True)]
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ours)
    got = [layer(x), layer(x, src_mask=mask), layer(x, src_mask=mask, is_causal=True)]
    assert len(called) == 3, "torch's own function computes them, not the replaced one"
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.autograd.backward(got[1].sum())


@pytest.mark.parametrize(
    "named", [{"attn_mask": MASK}, {"is_causal": True}, {"dropout_p": 0.5}], ids=["mask", "causal", "dropout"]
)
def test_calls_are_compiled_without_a_break(named: dict[str, Any]) -> None:
    q, k, v = tensors()
    program = torch.compile(lambda *t: evoengine.attention(*t, **named), backend="eager", fullgraph=True)
    torch.manual_seed(5)
    want = SDPA(q, k, v, **named)
    torch.manual_seed(5)
    torch.testing.assert_close(program(q, k, v), want)


@pytest.mark.parametrize(
    ("seq_kv", "named", "message"),
    [
        (24, {"causal": True, "is_causal": False}, "causal=True and is_causal=False contradict each other"),
        (24, {"causal": False, "is_causal": True}, "causal=False and is_causal=True contradict each other"),
        (40, {"causal": True, "is_causal": True}, "with the last key, is_causal with the first"),
        (24, {"attn_mask": MASK[:, :24], "is_causal": True}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "causal": True}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "window": (3, None)}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "softcap": 2.0}, "attn_mask is computed by SDPA"),
        (24, {"attn_mask": MASK[:, :24], "layout": "sbhd"}, "layout must be"),
        (24, {"dropout_p": 0.5, "return_lse": True}, "dropout_p is computed by SDPA"),
        (40, {"dropout_p": 0.5, "causal": True}, "no second mask"),
        (40, {"is_causal": True, "sink": torch.zeros(4)}, "is_causal is computed by SDPA"),
        (24, {"attn_mask": MASK[:, :24], "fallback": False}, "kernels take no attn_mask: enable fallback"),
    ],
    ids=str,
)
def test_contradictions_are_one_line(seq_kv: int, named: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evoengine.attention(*tensors(24, seq_kv), **named)
    assert "\n" not in str(caught.value)


def test_packed_sequences_take_the_causal_mask_of_kernels() -> None:
    starts = torch.tensor([0, 20, 24], dtype=torch.int32)
    packed = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 20, "max_seqlen_kv": 20}
    with pytest.raises(ValueError, match="give causal=True"):
        evoengine.attention(*(torch.randn(24, 2, 32) for _ in range(3)), is_causal=True, **packed)


def test_both_flags_may_agree() -> None:
    q, k, v = tensors(24, 24)
    assert torch.equal(evoengine.attention(q, k, v, causal=True, is_causal=True), SDPA(q, k, v, is_causal=True))


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"attn_mask": MASK}, "kernels take no attn_mask"),
        ({"dropout_p": 0.1}, "kernels have no dropout"),
        ({"is_causal": True}, "is_causal aligns the mask with the first key"),
    ],
    ids=["mask", "dropout", "causal"],
)
def test_explain_says_why_torch_computes_such_a_call(named: dict[str, Any], reason: str) -> None:
    said = evoengine.explain(*tensors(), **named)
    assert (said.server, said.problem) == ("sdpa", "")
    assert said.reasons[0].startswith(reason)
    assert evoengine.explain(*(t.half() for t in tensors(24, 24)), is_causal=True).problem == "2x4x24x32-fp16-causal"


def test_a_kernel_computes_sdpas_causal_call(emulated: Callable[..., Emulated]) -> None:
    q, k, v = (draw(1, 2, 40, 64, seed=number) for number in range(3))
    here = emulated()
    for named in ({"is_causal": True}, {"causal": True}, {"is_causal": True, "enable_gqa": True}):
        assert_right(here.attention(q, k, v, **named), Options(causal=True), q, k, v)
    (call,) = here.resolved
    assert call.causal
    launched = len(here.driver.launched)
    here.attention(q, k, v, is_causal=False)
    assert len(here.driver.launched) == launched + 1
    assert not here.resolved[-1].causal
    here.attention(q, k, v, dropout_p=0.5)
    assert len(here.driver.launched) == launched + 1, "torch computes it"
