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
    "tensor as scale": (tensors(), (), {"scale": torch.tensor(0.3)}),
    "no heads": ([one[:, :0] for one in tensors()], (), {}),
    "no heads, mask": ([one[:, :0] for one in tensors()], (MASK,), {}),
    "no query heads": ([tensors()[0][:, :0], *tensors()[1:]], (), {"enable_gqa": True}),
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
    with pytest.raises(TypeError, match=r"^attention\(\)"):
        evoengine.attention(**dict[str, Any](zip(("query", "key", "value"), tensors(), strict=True)))


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
        (24, {"causal": True, "is_causal": False}, "causal=True .*is_causal=False"),
        (24, {"causal": False, "is_causal": True}, "causal=False .*is_causal=True"),
        (40, {"causal": True, "is_causal": True}, "last key, is_causal .*first"),
        (24, {"attn_mask": MASK[:, :24], "is_causal": True}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "causal": True}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "window": (3, None)}, "no second mask"),
        (24, {"attn_mask": MASK[:, :24], "softcap": 2.0}, "attn_mask "),
        (24, {"attn_mask": MASK[:, :24], "layout": "sbhd"}, "layout must be"),
        (24, {"dropout_p": 0.5, "return_lse": True}, "dropout_p "),
        (40, {"dropout_p": 0.5, "causal": True}, "no second mask"),
        (40, {"is_causal": True, "sink": torch.zeros(4)}, "is_causal "),
        (24, {"attn_mask": MASK[:, :24], "fallback": False}, "attn_mask.*fallback"),
    ],
    ids=str,
)
def test_contradictions_are_one_line(seq_kv: int, named: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evoengine.attention(*tensors(24, seq_kv), **named)
    assert "\n" not in str(caught.value)


def test_packed_sequences_take_the_causal_mask_of_kernels() -> None:
    starts = torch.tensor([0, 20, 24], dtype=torch.int32)
    packed: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 20, "max_seqlen_kv": 20}
    tensors = [torch.randn(24, 2, 32) for _ in range(3)]
    with pytest.raises(ValueError, match="give causal=True"):
        evoengine.attention(*tensors, is_causal=True, **packed)
    with pytest.raises(ValueError, match="packed sequences"):
        evoengine.attention(*tensors, attn_mask=torch.ones(24, 24, dtype=torch.bool), **packed)


def test_both_flags_may_agree() -> None:
    q, k, v = tensors(24, 24)
    assert torch.equal(evoengine.attention(q, k, v, causal=True, is_causal=True), SDPA(q, k, v, is_causal=True))


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"attn_mask": MASK}, "attn_mask"),
        ({"dropout_p": 0.1}, "dropout"),
        ({"is_causal": True}, "is_causal"),
    ],
    ids=["mask", "dropout", "causal"],
)
def test_explain_says_why_torch_computes_such_a_call(named: dict[str, Any], reason: str) -> None:
    said = evoengine.explain(*tensors(), **named)
    assert (said.server, said.problem) == ("sdpa", "")
    assert reason in said.reasons[0]
    assert evoengine.explain(*(t.half() for t in tensors(24, 24)), is_causal=True).problem == "2x4x24x32-fp16-causal"


def test_a_kernel_computes_sdpas_causal_call(emulated: Callable[..., Emulated]) -> None:
    q, k, v = (draw(1, 2, 40, 64, seed=number) for number in range(3))
    here = emulated()
    calls: list[dict[str, Any]] = [{"is_causal": True}, {"causal": True}, {"is_causal": True, "enable_gqa": True}]
    for named in calls:
        assert_right(here.attention(q, k, v, **named), Options(causal=True), q, k, v)
    (call,) = here.resolved
    assert call.causal
    launched = len(here.driver.launched)
    here.attention(q, k, v, is_causal=False)
    assert len(here.driver.launched) == launched + 1
    assert not here.resolved[-1].causal
    here.attention(q, k, v, dropout_p=0.5)
    assert len(here.driver.launched) == launched + 1, "torch computes it"


TYPES = {
    "one": (torch.float32,) * 3,
    "mixed": (torch.bfloat16, torch.float32, torch.float32),
    "three": (torch.float16, torch.bfloat16, torch.float32),
    "float64": (torch.float64,) * 3,
}


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("named", [{}, {"attn_mask": MASK}, {"is_causal": True}], ids=["plain", "mask", "causal"])
@pytest.mark.every(5)
def test_autocast_casts_as_for_sdpa(types: str, to: torch.dtype, named: dict[str, Any]) -> None:
    q, k, v = (one.to(dtype) for one, dtype in zip(tensors(), TYPES[types], strict=True))
    if "attn_mask" in named:
        named = {"attn_mask": MASK.to(TYPES[types][0])}
    torch.compiler.reset()  # torch limits how often it compiles one function
    with torch.autocast("cpu", to):
        want = SDPA(q, k, v, **named)
        got = [evoengine.attention(q, k, v, **named)]
        with evoengine.replace_sdpa():
            got.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, **named))
        got.append(torch.compile(evoengine.attention, backend="eager", fullgraph=True)(q, k, v, **named))
    for one in got:
        assert one.dtype == want.dtype == (torch.float64 if types == "float64" else to)
        torch.testing.assert_close(one, want)


@pytest.mark.parametrize("other_device", [False, True])
def test_mixed_types_are_refused_without_autocast_of_their_device(
    other_device: bool, request: pytest.FixtureRequest
) -> None:
    q, k, v = tensors()
    request.addfinalizer(lambda: torch.set_autocast_enabled("cuda", False))
    torch.set_autocast_enabled("cuda", other_device)
    with torch.autocast("cpu", enabled=False), evoengine.replace_sdpa():
        with pytest.raises(ValueError, match=r"k .*float32.* q .*bfloat16"):
            evoengine.attention(q.bfloat16(), k, v)
        with pytest.raises(RuntimeError, match="to have the same dtype"):
            torch.nn.functional.scaled_dot_product_attention(q.bfloat16(), k, v)


def test_errors_under_autocast_name_what_is_wrong() -> None:
    q, k, v = tensors()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="attn_mask"):
        evoengine.attention(q.half(), k, v, attn_mask=MASK[:7])


def test_the_type_of_autocast_may_change_from_call_to_call(emulated: Callable[..., Emulated]) -> None:
    q, k, v = (draw(1, 2, 16, 64, seed=number) for number in range(3))
    here = emulated()
    for dtype in (torch.float16, torch.bfloat16, None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            for _ in range(2):
                assert here.attention(q, k, v).dtype == (dtype or torch.float16)


def test_features_that_sdpa_lacks_are_computed_in_float32_under_autocast() -> None:
    q, k, v = (one.half().float() * 8 for one in tensors())
    want, want_lse = evoengine.attention(q, k, v, softcap=50.0, return_lse=True)
    with torch.autocast("cpu", torch.float16):
        o, lse = evoengine.attention(q, k, v, softcap=50.0, return_lse=True)
    assert (o.dtype, lse.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(lse, want_lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(o.float(), want, rtol=1e-3, atol=1e-3)


def test_kernels_compute_what_autocast_casts(emulated: Callable[..., Emulated]) -> None:
    q, k, v = (draw(1, 2, 40, 64, seed=number) for number in range(3))
    here = emulated()
    with torch.autocast("cpu", torch.float16):
        for some in ((q, k, v), (q.float(), k.float(), v.float()), (q, k.float(), v.float())):
            assert_right(here.attention(*some), Options(), q, k, v)
        assert evoengine.explain(q.float(), k.float(), v.float()).problem == "1x2x40x64-fp16"
    assert len(here.resolved) == 1
    assert len(here.driver.launched) == 3


def test_a_scale_may_be_a_tensor(emulated: Callable[..., Emulated]) -> None:
    q, k, v = (draw(1, 2, 40, 64, seed=number) for number in range(3))
    here, scale = emulated(), torch.tensor(0.3)
    for value in (0.3, -0.2):
        assert_right(here.attention(q, k, v, scale=scale.fill_(value)), Options(scale=value), q, k, v)
    assert evoengine.explain(q, k, v, scale=scale).problem == "1x2x40x64-fp16"
    program = torch.compile(evoengine.attention, backend="eager")
    torch.testing.assert_close(program(q, k, v, scale=torch.tensor([0.3])), SDPA(q, k, v, scale=0.3))
    for other in (torch.tensor([0.3, 0.2]), torch.tensor(0.3, requires_grad=True)):
        with pytest.raises(TypeError, match=r"^scale "):
            evoengine.attention(q, k, v, scale=other)


def test_a_flag_that_is_modified_in_place_is_read_again() -> None:
    q, k, v = tensors(24, 24)
    for name in ("causal", "is_causal"):
        flag: Any = torch.tensor(True)
        evoengine.attention(q, k, v, **{name: flag})
        assert torch.equal(evoengine.attention(q, k, v, **{name: flag.fill_(False)}), SDPA(q, k, v))


@pytest.mark.parametrize(
    "named", [{}, {"causal": True}, {"window": (3, 2)}, {"sink": torch.tensor([0.0, 1.0])}], ids=str
)
@pytest.mark.parametrize("shape", [(2, 0), (0, 9), (0, 0)], ids=str)
def test_rows_without_keys_are_zero(shape: tuple[int, int], named: dict[str, Any]) -> None:
    q, k = torch.randn(1, 2, shape[0], 8, requires_grad=True), torch.randn(1, 2, shape[1], 8)
    for softcap in (0.0, 3.0):
        o, lse = evoengine.attention(q, k, k, return_lse=True, softcap=softcap, **named)
        assert (o.shape, lse.shape) == (q.shape, q.shape[:3])
        assert not o.any()
        sink = named.get("sink", torch.full((2,), float("-inf")))
        assert torch.equal(lse, sink[None, :, None].expand(lse.shape))
        torch.autograd.backward(o.sum())


def test_no_heads_have_no_log_sum_exp() -> None:
    q, k = torch.randn(1, 0, 4, 8), torch.randn(1, 2, 9, 8)
    for other in (q, k):
        o, lse = evoengine.attention(q, other, other, return_lse=True, softcap=2.0)
        assert (o.shape, lse.shape) == ((1, 0, 4, 8), (1, 0, 4))
