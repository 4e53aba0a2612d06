"""``other_tests.py`` on the emulator: FlashAttention's functions over its own parameters, PyTorch's samples of SDPA."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from evoengine.errors import NothingFoundError, UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from tests.api.emulated import Emulated
from tests.scripts.running import Run, load

HALF = torch.float16
AXES: Final[dict[str, tuple[Any, ...]]] = {
    "kvpacked": (True, False),
    "dtype": (torch.float16, torch.bfloat16),
    "mha_type": ("mha", "mqa", "gqa"),
    "deterministic": (False, True),
    "alibi": (False, True),
    "local": (False, True),
    "causal": (False, True),
    "d": (32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256),
    "dropout_p": (0.0, 0.17),
    "softcap": (0.0, 50.0),
}
"""The axes of ``test_flash_attn_output`` at commit 0251105, but for its lengths."""
LENGTHS = ((13, 23), (16, 17), (11, 32), (32, 16), (1, 33), (31, 32), (32, 31))
"""Lengths like those of its cases, in tiles of the emulated kernel."""


@pytest.fixture(autouse=True)
def _no_stand_in_stays() -> Iterator[None]:
    """Removes the package that the script puts in the place of flash-attn: later tests would find it."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("other_tests")


@pytest.fixture(scope="module")
def adapters() -> ModuleType:
    return load("flash_attn_adapter")


@pytest.fixture(scope="module")
def emulated() -> Emulated:
    return Emulated(default_cache_dir(), WARPS_M=1, WARPS_N=1, BLOCK_N=16)


@pytest.fixture
def adapter(adapters: ModuleType, emulated: Emulated) -> Any:
    return adapters.Adapter(emulated.attention, emulated.dispatcher.wrapping)


def draw(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_definition(q: Any, k: Any, v: Any, causal: bool, window: tuple[int, int], softcap: float) -> torch.Tensor:
    """FlashAttention's attention of one sequence, [rows, heads, head_dim], row by row in float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    queries, keys, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    left, right = window[0], 0 if causal else window[1]
    for row, head in itertools.product(range(queries), range(q.shape[1])):
        diagonal = row + keys - queries
        first = 0 if left < 0 else max(0, diagonal - left)
        end = keys if right < 0 else min(keys, diagonal + right + 1)
        if end > first:
            scores = (k[first:end, head // group].double() @ q[row, head].double()) / math.sqrt(q.shape[2])
            scores = softcap * torch.tanh(scores / softcap) if softcap else scores
            out[row, head] = torch.softmax(scores, dim=0) @ v[first:end, head // group].double()
    return out


def sampled(count: int) -> list[dict[str, Any]]:
    """Combinations of the axes that kernels serve; each head_dim costs a compilation, so there are three."""
    rng = random.Random(5)
    small = AXES | {"d": (32, 40, 64), "alibi": (False,), "dropout_p": (0.0,)}
    return [
        {name: rng.choice(values) for name, values in small.items()} | {"lengths": LENGTHS[i % len(LENGTHS)]}
        for i in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="x".join(map(str, case["lengths"])), marks=[pytest.mark.thorough] if number % 4 else [])
        for number, case in enumerate(sampled(2 * len(LENGTHS)))
    ],
)
@pytest.mark.every(3)
def test_flash_attention_s_cases_on_the_emulator(adapter: Any, case: dict[str, Any], varlen: bool) -> None:
    (queries, keys), dim, dtype, softcap = case["lengths"], case["d"], case["dtype"], case["softcap"]
    kv_heads = {"mha": 4, "mqa": 1, "gqa": 2}[case["mha_type"]]
    left, right = random.Random(queries).choices(range(keys), k=2) if case["local"] else (-1, -1)
    window = left, right
    lengths = [(queries, keys), (max(1, queries - 9), keys - 7)] if varlen else [(queries, keys)]
    rows_q, rows_kv = (sum(sizes) for sizes in zip(*lengths, strict=True))
    q = draw(rows_q, 4, dim, dtype=dtype) * (softcap or 1)
    kv = draw(rows_kv, 2, kv_heads, dim, dtype=dtype, seed=1)
    said = {"causal": case["causal"], "window_size": window, "softcap": softcap, "return_attn_probs": True}
    said["deterministic"] = case["deterministic"]
    starts = [
        torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32) for sizes in zip(*lengths, strict=True)
    ]
    with adapter.counting():
        if varlen:
            parts = (kv,) if case["kvpacked"] else kv.unbind(1)
            name = "flash_attn_varlen_kvpacked_func" if case["kvpacked"] else "flash_attn_varlen_func"
            o, lse, probabilities = getattr(adapter, name)(q, *parts, *starts, queries, keys, 0.0, **said)
        else:
            parts = (kv[None],) if case["kvpacked"] else kv[None].unbind(2)
            name = "flash_attn_kvpacked_func" if case["kvpacked"] else "flash_attn_func"
            o, lse, probabilities = getattr(adapter, name)(q[None], *parts, 0.0, **said)
            o = o[0]
    assert (adapter.calls, adapter.launches, probabilities) == (1, 1, None)
    assert lse.shape[-1] == rows_q
    k, v = kv.unbind(1)
    cut = [(slice(*starts[0][i : i + 2]), slice(*starts[1][i : i + 2])) for i in range(len(lengths))]
    want = torch.cat([by_definition(q[a], k[b], v[b], case["causal"], window, softcap) for a, b in cut])
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(o.double(), want, rtol=4 * step, atol=4 * step)


def test_gradients_are_those_of_attention(adapter: Any) -> None:
    q, k, v = (draw(1, 16, heads, 64, seed=heads).requires_grad_() for heads in (2, 1, 1))
    o = adapter.flash_attn_func(q, k, v, causal=True)
    found = torch.autograd.grad(o.square().sum(), (q, k, v))
    q2, k2, v2 = (one.detach().double().transpose(1, 2).requires_grad_() for one in (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(q2, k2, v2, is_causal=True, enable_gqa=True)
    for mine, theirs in zip(found, torch.autograd.grad(want.square().sum(), (q2, k2, v2)), strict=True):
        torch.testing.assert_close(mine.double(), theirs.transpose(1, 2), rtol=2e-2, atol=2e-2)


def test_calls_without_a_kernel_are_refused_with_the_reason(adapters: ModuleType, adapter: Any) -> None:
    q = draw(1, 16, 2, 64)
    for arguments, named, reason in (
        ((q, q, q, 0.17), {}, "dropout_p"),
        ((q, q, q), {"alibi_slopes": torch.ones(2)}, "alibi_slopes"),
    ):
        with pytest.raises(adapters.RefusedError, match=reason):
            adapter.flash_attn_func(*arguments, **named)
    with pytest.raises(adapters.RefusedError, match="cache"):
        adapter.flash_attn_with_kvcache(q, q, q)

    def unserved(*_arguments: Any, **_named: Any) -> Any:
        raise NothingFoundError("no kernel for this call")

    with pytest.raises(adapters.RefusedError, match="no kernel"):
        adapters.Adapter(unserved, Emulated(default_cache_dir()).dispatcher.wrapping).flash_attn_func(q, q, q)


def test_the_sample_is_of_the_cases_that_kernels_serve(script: ModuleType) -> None:
    def test() -> None: ...

    for name, values in AXES.items():
        test = pytest.mark.parametrize(name, values)(test)
    lengths = [(length, length) for length in range(10)]
    test = pytest.mark.parametrize("seqlen_q,seqlen_k", lengths)(test)  # noqa: PT006 - as FlashAttention writes it
    cases = list(script.combinations(script.axes_of(test)))
    assert len(cases) == 17280
    assert {(case["dropout_p"], case["alibi"], case["d"] % 8) for case in cases} == {(0.0, False, 0)}
    assert {case["seqlen_k"] for case in cases} == set(range(10))
    assert len({tuple(case.values()) for case in cases}) == 17280


CHECKOUT = {
    "tests/test_flash_attn.py": """
import pytest, torch
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.bert_padding import scale
from flash_attn.flash_attn_interface import _get_block_size_n, USE_TRITON_ROCM
from flash_attn.layers.rotary import apply_rotary_emb

capability = torch.cuda.get_device_capability("cuda")

@pytest.mark.parametrize("kind", ["right", "wrong", "refused", "skipped", "torch"])
@pytest.mark.parametrize("d", [64, 59])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(16, 16), (16, 65)])
def test_flash_attn_output(seqlen_q, seqlen_k, kind, d):
    print("progress of the test")
    assert torch.cuda.get_device_capability("cuda") if torch.cuda.is_available() else capability == (8, 9)
    q = torch.ones(1, seqlen_q, 2, d, dtype=torch.float16, device="cuda")
    if kind == "skipped":
        pytest.skip("not here")
    if kind == "refused":
        flash_attn_with_kvcache(q, q, q)
    o = torch.ones_like(q) if kind == "torch" else flash_attn_func(q, q, q)
    assert o.mean() == (scale if kind != "wrong" else 3.0)
""",
    "flash_attn/bert_padding.py": "scale = 1.0\n",
}


def test_a_checkout_is_run_and_resumed(
    script: ModuleType, adapter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in CHECKOUT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def cases() -> Any:
        names = {"tests": ["test_flash_attn_output"], "count": 100, "seed": 0, "device": "emulator", "longest": 64}
        return script.flash_attn_cases(tmp_path, adapter, Namespace(**names))

    settings = {"suite": "a checkout", "device": "the emulator", "version": "commit 1"}
    results = script.Results(tmp_path / "out.json", settings)
    assert len(cases()) == 5, "head_dim 59 and the long sequence are left out"
    script.run_cases(cases()[:2], adapter, results, math.inf)
    script.run_cases(cases(), adapter, results, 0.0)
    resumed = script.Results(tmp_path / "out.json", settings)
    assert resumed.document["done"] == 2
    script.run_cases(cases(), adapter, resumed, math.inf)
    assert resumed.totals == Counter(passed=2, failed=1, refused=1, skipped=1)
    assert resumed.document["launches"] == 2
    assert list(resumed.document["refused"].values()) == [1]
    assert "kind=wrong" in resumed.document["failed"][0]
    text = script.page(resumed.document, 5)
    assert "| test_flash_attn_output | 2 | 1 | 1 | 1 |" in text
    assert "5 of 5 cases, 2 launches" in text
    printed = capsys.readouterr().out
    assert "test_flash_attn_output(" in printed
    assert "progress of the test" not in printed
    with pytest.raises(UsageError, match="give the same options"):
        script.Results(tmp_path / "out.json", settings | {"version": "commit 2"})
    with pytest.raises(UsageError, match="path of a checkout"):
        script.load_tests(tmp_path / "flash_attn", adapter)


def test_a_call_that_launches_no_kernel_has_failed(script: ModuleType, adapters: ModuleType) -> None:
    other = Emulated(default_cache_dir())

    def torch_computes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_named: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), q[..., 0]

    adapter = adapters.Adapter(torch_computes, other.dispatcher.wrapping)
    q = draw(1, 16, 2, 64)
    case = script.Case("test", {}, lambda: adapter.flash_attn_func(q, q, q))
    with adapter.counting():
        assert script.outcome_of(case, adapter) == ("failed", "1 calls launched 0 kernels", 0)


@pytest.mark.slow
def test_samples_of_torch_on_the_emulator(
    script: ModuleType, adapter: Any, adapters: ModuleType, emulated: Emulated
) -> None:
    def outcomes(tested: Any, *types: torch.dtype) -> list[tuple[str, str, int]]:
        with tested.counting():
            cases = script.opinfo_cases(tested, "cpu", types)
            return [script.outcome_of(case, tested) for case in cases]

    found = outcomes(adapter, torch.float16, torch.bfloat16)
    assert Counter(outcome for outcome, _, _ in found) == {"passed": 12, "refused": 38}
    assert sum(launches for _, _, launches in found) == adapter.launches == 12
    reasons = Counter(reason.split(":")[0] for outcome, reason, _ in found if outcome == "refused")
    assert len(reasons) == 3
    assert all(any(name in reason for reason in reasons) for name in ("dropout", "attn_mask", "is_causal"))

    def larger(q: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        return 1.1 * emulated.attention(q, *arguments, **named)

    wrong = outcomes(adapters.Adapter(larger, emulated.dispatcher.wrapping), torch.float16)
    assert Counter(outcome for outcome, _, _ in wrong) == {"failed": 6, "refused": 19}


def test_without_a_gpu_it_is_one_line(run: Run, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for words in (["opinfo"], ["flash-attn", tmp_path]):
        done = run("other_tests.py", *words, "--out", tmp_path / "out")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "nvidia-smi" in done.stderr
    assert json.dumps(list(map(str, tmp_path.iterdir()))) == "[]"


def test_what_several_processes_found_is_added_up(script: ModuleType) -> None:
    def document(part: int, seconds: float, passed: int, refused: dict[str, int], failed: list[str]) -> dict[str, Any]:
        outcomes = {"passed": passed, "refused": sum(refused.values()), "failed": len(failed)}
        counts = {name: count for name, count in outcomes.items() if count}
        settings = {"suite": "X", "cases": 9, "part": f"{part} of 2"}
        return {"settings": settings, "done": sum(counts.values()), "launches": passed, "seconds": seconds,
                "tests": {"a": counts}, "refused": refused, "failed": failed}  # fmt: skip

    first, second = (
        document(0, 5.0, 3, {"no sink": 1}, []),
        document(1, 7.0, 2, {"no sink": 1, "mask": 1}, ["a(x): wrong"]),
    )
    total = script.merged([first, second])
    assert total == {
        "settings": {"suite": "X", "cases": 9}, "done": 9, "launches": 5, "seconds": 7.0,
        "tests": {"a": {"passed": 5, "refused": 3, "failed": 1}}, "refused": {"no sink": 2, "mask": 1},
        "failed": ["a(x): wrong"],
    }  # fmt: skip
    assert first["tests"] == {"a": {"passed": 3, "refused": 1}}, "unchanged"
