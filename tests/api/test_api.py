"""``evoengine.attention``, ``explain`` and ``tune`` without a GPU, where torch computes all calls."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import evoengine
from evoengine.device.contract import exact_attention, random_inputs
from evoengine.errors import NothingFoundError, ProblemError, StoreError
from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType, Problem
from evoengine.runtime.attention_type import AttentionFunction
from tests.api.boards import MISSION, Entry, mma, store

BASE = Problem(2, 4, 37, 16, kv_heads=2, seq_kv=45)
PROBLEMS = [
    Problem(1, 2, 32, 64, causal=True),
    BASE,
    replace(BASE, causal=True),
    replace(BASE, seq_kv=20, causal=True),  # the first rows have no visible keys
    replace(BASE, window_left=11, window_right=4),
    replace(BASE, window_left=6, causal=True),
    replace(BASE, softcap=1.5),
    replace(BASE, sink=True, causal=True, seq_kv=20),
    replace(BASE, lse=True, causal=True, seq_kv=20),
    replace(BASE, dtype=DType.BF16),
    replace(BASE, window_left=20, window_right=9, softcap=2.0, sink=True, lse=True),
    replace(BASE, batch=4, lengths_q=(5, 37, 0, 20), lengths_kv=(9, 45, 3, 10)),
    replace(BASE, batch=3, lengths_q=(37, 1, 9), lengths_kv=(10, 45, 0), causal=True, lse=True),
    replace(BASE, batch=2, lengths_q=(20, 37), lengths_kv=(45, 3), window_left=5, window_right=2, sink=True),
]
TYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs each test in a folder without a leaderboard, with empty caches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOENGINE_LEADERBOARD", raising=False)
    evoengine.forget()
    yield
    evoengine.forget()


def tensors(count: int = 3, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape or (1, 2, 24, 32), generator=generator).to(dtype) for _ in range(count)]


def call_of(inputs: AttentionInputs, layout: str) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Converts a problem's inputs to arguments of ``attention``."""
    problem = inputs.problem
    q, k, v = (
        torch.from_numpy(bits.astype(np.int32).astype(np.int16)).view(TYPES[problem.dtype])
        for bits in (inputs.q, inputs.k, inputs.v)
    )
    said: dict[str, Any] = {
        "causal": problem.causal,
        "window": (problem.window_left, problem.window_right),
        "softcap": problem.softcap,
        "sink": None if inputs.sink is None else torch.from_numpy(inputs.sink),
        "return_lse": problem.lse,
    }
    if problem.packed:
        said["cu_seqlens_q"] = torch.from_numpy(inputs.cu_seqlens_q)
        said["cu_seqlens_kv"] = torch.from_numpy(inputs.cu_seqlens_kv)
        return tuple(t[0].transpose(0, 1) for t in (q, k, v)), said
    return tuple(t.transpose(1, 2) if layout == "bshd" else t for t in (q, k, v)), said | {"layout": layout}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.key for problem in PROBLEMS])
def test_results_match_the_definition_of_attention(problem: Problem, layout: str) -> None:
    inputs = random_inputs(problem, 1)
    arguments, said = call_of(inputs, layout)
    got = evoengine.attention(*arguments, **said)
    o, lse = got if problem.lse else (got, None)
    want, want_lse = exact_attention(inputs)
    exact = torch.from_numpy(want)
    exact = exact[0].transpose(0, 1) if problem.packed else exact.transpose(1, 2) if layout == "bshd" else exact
    step = 2.0**-9 if problem.dtype is DType.FP16 else 2.0**-6
    torch.testing.assert_close(o.double(), exact.double(), rtol=4 * step, atol=step)
    if lse is not None:
        exact_lse = torch.from_numpy(want_lse)[0] if problem.packed else torch.from_numpy(want_lse)
        torch.testing.assert_close(lse.double(), exact_lse.double(), rtol=1e-3, atol=1e-3)


def test_explanation_of_calls_computed_by_torch() -> None:
    q, k, v = tensors(dtype=torch.float16)
    said = evoengine.explain(q, k, v, causal=True)
    assert (said.server, said.device, said.ours) == ("sdpa", "cpu", False)
    assert said.problem == "1x2x24x32-fp16-causal"
    assert str(said).startswith(f"{said.problem} on cpu")
    assert all(reason in str(said) for reason in said.reasons)
    assert evoengine.explain(q, k, v, softcap=2.0).server == "plain"
    assert evoengine.explain(q, k, v, sink=torch.zeros(2)).server == "plain"
    assert evoengine.explain(q.float(), k.float(), v.float()).problem == ""
    assert evoengine.explain(*(one[..., :23] for one in (q, k, v))).problem == "1x2x24x24-fp16", "kernels are padded"
    wanted = evoengine.explain(q.requires_grad_(), k, v)
    assert "gradient" in wanted.reasons[0]


def test_explain_rejects_unknown_arguments() -> None:
    with pytest.raises(TypeError, match="casual"):
        evoengine.explain(*tensors(), casual=True)


def test_gradients_are_computed_by_torch() -> None:
    q, k, v = (t.requires_grad_() for t in tensors(3, 1, 2, 24, 32))
    torch.autograd.backward(evoengine.attention(q, k, v, causal=True).square().sum())
    ours = [t.grad for t in (q, k, v)]
    q2, k2, v2 = (t.detach().requires_grad_() for t in (q, k, v))
    torch.autograd.backward(torch.nn.functional.scaled_dot_product_attention(q2, k2, v2, is_causal=True).square().sum())
    for mine, theirs in zip(ours, (q2.grad, k2.grad, v2.grad), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match="no gradient"):
        evoengine.attention(q, k, v, fallback=False)
    q3 = tensors(1, 1, 2, 40, 32)[0].requires_grad_()  # rows without visible keys propagate no NaN
    torch.autograd.backward(evoengine.attention(q3, k, v, causal=True).sum())
    assert q3.grad is not None
    assert bool(torch.isfinite(q3.grad).all())


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.thorough), "aot_eager"])
def test_compiled_programs_call_the_op(backend: str) -> None:
    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        o, lse = evoengine.attention(q, k, v, window=(9, None), causal=True, softcap=3.0, return_lse=True)
        return evoengine.attention(2 * o, k, v, causal=True, layout="bshd") + lse.sum()

    arguments = tensors(3, 2, 16, 16, 32)
    program = torch.compile(block, backend=backend, fullgraph=True)
    torch.testing.assert_close(program(*arguments), block(*arguments))
    trained = [t.requires_grad_() for t in tensors(3, 2, 16, 16, 32)]
    program(*trained).sum().backward()
    assert all(t.grad is not None for t in trained)


def test_a_dynamic_program_is_compiled_once() -> None:
    seen = []

    def count(module: Any, example: Any) -> Any:
        seen.append(module)
        return module

    program = torch.compile(
        lambda q, k, v: evoengine.attention(q, k, v, causal=True), backend=count, dynamic=True, fullgraph=True
    )
    for length in (16, 24, 40):
        arguments = tensors(3, 1, 2, length, 32)
        torch.testing.assert_close(program(*arguments), evoengine.attention(*arguments, causal=True))
    assert len(seen) == 1
    assert "evoengine.attention_qkv.default" in seen[0].code


def test_the_ops_pass_opcheck() -> None:
    q, k, v = tensors(3, 2, 24, 2, 32)
    options = (True, 9, -1, 0.0, None, 0, 0, "bshd", True, "")
    torch.library.opcheck(torch.ops.evoengine.attention.default, (q, k, v, None, None, None, *options))
    sink = torch.zeros(2)
    torch.library.opcheck(torch.ops.evoengine.attention_lse.default, (q, k, v, sink, None, None, *options))
    starts = torch.tensor([0, 20, 24], dtype=torch.int32)
    packed = (*tensors(3, 24, 2, 32), None, starts, starts, False, -1, -1, 0.0, None, 20, 20, "bhsd", True, "")
    torch.library.opcheck(torch.ops.evoengine.attention_lse.default, packed)
    torch.library.opcheck(torch.ops.evoengine.attention_qkv.default, (q, k, v, True, "bshd"))
    with pytest.raises(RuntimeError, match="no gradient"):
        torch.ops.evoengine.attention(q.requires_grad_(), k, v, None, None, None, *options).sum().backward()


def test_fake_tensors_match_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for layout in ("bhsd", "bshd"):
        arguments = [t.half().transpose(1, 2) for t in tensors(3, 2, 24, 2, 32)]
        real = evoengine.attention(*arguments, layout=layout, return_lse=True)
        with FakeTensorMode() as mode:
            fake = evoengine.attention(*(mode.from_tensor(t) for t in arguments), layout=layout, return_lse=True)
        for a, b in zip(real, fake, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert fake[0].stride() == arguments[0].stride()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("rank", {}, "four axes"),
        ("dtype", {}, r"k .*float16.* q .*float32"),
        ("heads", {}, r"heads of Q \(2\)"),
        ("values", {}, "k and v "),
        ("dim", {}, "batch and head_dim"),
        ("", {"layout": "sbhd"}, r"layout .*'bhsd'.*'bshd'"),
        ("", {"causal": True, "window": (None, 3)}, "a causal mask hides"),
        ("", {"is_causal": True, "window": (None, 3)}, "a causal mask hides"),
        ("", {"window": (-2, None)}, "left side "),
        ("", {"softcap": -1.0}, "softcap "),
        ("", {"softcap": 1e300}, "softcap "),
        ("", {"scale": float("inf")}, "scale "),
        ("", {"scale": float("nan")}, "scale "),
        ("", {"scale": -1e300}, "scale "),
        ("", {"sink": torch.zeros(3)}, r"sink .*\[2\]"),
        ("", {"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)}, r"q has the shape \(1, 2, 24, 32\)"),
    ],
)
def test_invalid_calls_are_rejected(change: str, options: dict[str, Any], message: str) -> None:
    q, k, v = tensors()
    match change:
        case "rank":
            q = q[0]
        case "dtype":
            k = k.half()
        case "heads":
            k, v = k.expand(1, 2, 24, 32).repeat(1, 2, 1, 1)[:, :3], v.repeat(1, 2, 1, 1)[:, :3]
        case "values":
            v = v[:, :, :20]
        case "dim":
            q = q[..., :16]
    for needs_gradient in (False, True):
        with pytest.raises(ValueError, match=message):
            evoengine.attention(q.clone().requires_grad_(needs_gradient), k, v, **options)


def test_a_mask_must_be_a_flag() -> None:
    q, k, v = tensors()
    for name in ("causal", "is_causal"):
        with pytest.raises(TypeError, match=f"^{name} .*Tensor"):
            evoengine.attention(q, k, v, **dict[str, Any]({name: torch.ones(2)}))


@pytest.mark.parametrize("name", ["causal", "is_causal"])
@pytest.mark.parametrize("value", ["False", 2.5, [False]])
def test_a_mask_of_another_type_is_refused_and_not_taken_for_true(name: str, value: Any) -> None:
    q, k, v = tensors()
    with pytest.raises(TypeError, match=f"^{name} must be True, False or None, not a {type(value).__name__}$"):
        evoengine.attention(q, k, v, **dict[str, Any]({name: value}))
    for flag in (torch.tensor(True), np.True_, 1):
        same = evoengine.attention(q, k, v, **dict[str, Any]({name: flag}))
        assert torch.equal(same, evoengine.attention(q, k, v, **dict[str, Any]({name: True})))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("side", [True, 1.0])
def test_a_side_of_the_window_is_a_whole_number_also_after_an_equal_one(dtype: torch.dtype, side: float) -> None:
    q, k, v = (tensor.to(dtype) for tensor in tensors())
    window: Any = (side, 0)
    for _ in range(3):
        with pytest.raises(TypeError, match="window_left must be a whole number"):
            evoengine.attention(q, k, v, window=window)
        evoengine.attention(q, k, v, window=(1, 0))
    evoengine.attention(q, k, v, window=(2, 0))
    with pytest.raises(TypeError, match="window_left must be a whole number"):
        evoengine.attention(q, k, v, window=window)


def test_packed_sequences_need_matching_cu_seqlens() -> None:
    q, k, v = tensors(3, 24, 2, 32)
    starts = torch.tensor([0, 20, 24], dtype=torch.int32)
    for one in (q, q.clone().requires_grad_()):
        with pytest.raises(ValueError, match="need both"):
            evoengine.attention(one, k, v, cu_seqlens_q=starts, max_seqlen_q=20, max_seqlen_kv=20)
    with pytest.raises(ValueError, match=r"cu_seqlens_q.*int32"):
        evoengine.attention(q, k, v, cu_seqlens_q=starts.long(), cu_seqlens_kv=starts)
    with pytest.raises(ValueError, match="one entry more"):
        evoengine.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts[:2].contiguous())
    program = torch.compile(evoengine.attention, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="need max_seqlen_q"):
        program(q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts)


def test_without_fallback_the_error_has_the_reason() -> None:
    with pytest.raises(NothingFoundError, match="fallback"):
        evoengine.attention(*tensors(), fallback=False)
    for dropout in (0.0, 0.5):
        reasons = evoengine.explain(*tensors(), dropout_p=dropout).reasons
        *others, last = evoengine.explain(*tensors(), dropout_p=dropout, fallback=False).reasons
        assert (tuple(others), "fallback is off" in last) == (reasons, True)


def test_missing_leaderboard(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        evoengine.explain(*tensors(), leaderboard=str(tmp_path / "no.db"))


def test_import_is_lazy() -> None:
    program = "import sys; old = set(sys.modules); import evoengine; print(*(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    others = {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names
    assert others == {"evoengine"}
    assert not {name for name in done.stdout.split() if name.startswith("evoengine.")}
    with pytest.raises(AttributeError, match="no attribute 'attentoin'"):
        evoengine.attentoin  # noqa: B018


def test_a_shell_completes_the_public_names_of_a_fresh_import() -> None:
    program = "import evoengine; print(*[name for name in dir(evoengine) if not name.startswith('_')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(set(evoengine.__all__) - {"__version__"})


def test_the_result_of_attention_has_the_type_that_type_checkers_expect() -> None:
    """mypy checks these calls with all tests: it refuses a wrong type, and an ignored line that has no error."""
    q = torch.ones(1, 2, 4, 8)
    flag = bool(q.sum())
    out: torch.Tensor = evoengine.attention(q, q, q, causal=True, scale=torch.tensor(0.5))
    pair: tuple[torch.Tensor, torch.Tensor] = evoengine.attention(q, q, q, return_lse=True)
    either: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = evoengine.attention(q, q, q, return_lse=flag)
    unpacked: torch.Tensor = evoengine.attention(*[q] * 3, causal=True)
    why: evoengine.Explanation = evoengine.explain(q, q, q)
    assert [type(one) for one in (out, pair, either, unpacked, why)] == [
        *(torch.Tensor, tuple, tuple, torch.Tensor),
        evoengine.Explanation,
    ]
    flag = evoengine.attention(q, q, q)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="casual"):
        evoengine.attention(q, q, q, casual=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="window"):
        evoengine.attention(q, q, q, window=3)  # type: ignore[call-overload]


def test_the_checked_signature_is_that_of_attention() -> None:
    real = inspect.signature(evoengine.attention).parameters.values()
    named = {one.name: one.default for one in real if one.name != "return_lse"}
    place: Any = SimpleNamespace(__module__=AttentionFunction.__module__, __qualname__="AttentionFunction.__call__")
    *exact, unpacked = typing.get_overloads(place)  # the method itself is only typing's placeholder
    for overload in exact:
        _, *said = inspect.signature(overload).parameters.values()
        assert [(one.name, one.kind) for one in said] == [(one.name, one.kind) for one in real]
        assert {one.name: one.default for one in said if one.name != "return_lse"} == named
    others = set(inspect.signature(unpacked).parameters) - {"self", "tensors"}
    assert others == {*named, "return_lse"} - {"q", "k", "v"}


# -- tune -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuning_fills_the_leaderboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    q, k, v = tensors(3, 1, 1, 16, 16, dtype=torch.float16)
    with pytest.warns(RuntimeWarning, match="predicted") as warned:
        said = evoengine.tune(q, k, v, budget=1, quiet=True, leaderboard="tuned.db")
    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    assert said.server == "sdpa"  # predicted rows are not used
    from evoengine.leaderboard.store import Leaderboard

    with Leaderboard("sqlite:///tuned.db", create=False) as board:
        (study,) = board.studies()
        assert study.key.problem == Problem(1, 1, 16, 16)
        assert board.evaluated(study) == 1


def test_tuning_on_the_cpu_warns_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that turns warnings into errors spends no budget."""
    q, k, v = tensors(3, 1, 1, 32, 64, dtype=torch.float16)
    with pytest.raises(RuntimeWarning, match="pass tensors on a GPU"):
        evoengine.tune(q, k, v, leaderboard="tuned.db")
    assert not Path("tuned.db").exists()


def test_tune_rejects_unsupported_calls(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"torch\.float32"):
        evoengine.tune(*tensors())
    with pytest.raises(ProblemError, match="attn_mask"):
        evoengine.tune(*tensors(dtype=torch.float16), attn_mask=torch.ones(24, 24, dtype=torch.bool))
    with pytest.raises(StoreError, match="is a lockfile"):
        evoengine.tune(*tensors(dtype=torch.float16), leaderboard="evoengine.lock")


def test_lockfile_of_the_lock_command_is_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from evoengine.api.lockfile import read_lockfile
    from evoengine.cli.verbs.lock import run_lock
    from evoengine.engine.options.verbs import LockOptions
    from evoengine.errors import UsageError

    causal = replace(MISSION, causal=True)
    slow, fast = Entry(MISSION, mma(), 6.0, crowned=False), Entry(MISSION, mma({"BLOCK_N": 16}), 5.0)
    store(tmp_path / "board.db", tmp_path / "cache", slow, fast, Entry(causal, mma(), gpu="NVIDIA L4"))
    request = LockOptions(tmp_path / "evoengine.lock", db=str(tmp_path / "board.db"))
    assert not run_lock(replace(request, check=True), json_output=False)
    assert not request.output.exists()
    assert run_lock(request, json_output=False)
    assert run_lock(replace(request, check=True), json_output=False)
    rows = read_lockfile(request.output)
    assert [(row.gpu, row.problem, row.median_us) for row in rows] == [
        ("NVIDIA H200", MISSION, 5.0),
        ("NVIDIA L4", causal, 5.0),
    ]
    capsys.readouterr()
    assert run_lock(replace(request, gpu="l4", output=tmp_path / "one.lock"), json_output=True)
    assert [kernel["gpu"] for kernel in json.loads(capsys.readouterr().out)["kernels"]] == ["NVIDIA L4"]
    assert not run_lock(replace(request, gpu="l4", check=True), json_output=False)
    with pytest.raises(NothingFoundError, match="no measured kernel"):
        run_lock(replace(request, problem="decode"), json_output=False)
    with pytest.raises(UsageError, match=r"ends in \.lock"):
        run_lock(replace(request, output=tmp_path / "lock.json"), json_output=False)
    assert evoengine.explain(*tensors(dtype=torch.float16)).source == "evoengine.lock"


@pytest.mark.parametrize(
    ("old", "new", "replaced"),
    [
        ('"median_us": 5.0', '"median_us": 4.0', True),
        ('"evoengine_lock": 1', '"evoengine_lock": 2, "more": []', True),
        ('"evoengine_lock": 1', '"uv_lock": 1', False),
        ('"kernels": [', '"packages": [', False),
    ],
    ids=["edited", "another format", "another program", "other entries"],
)
@pytest.mark.every(2)
def test_lock_replaces_a_lockfile_that_is_stale_and_no_other_file(
    tmp_path: Path, old: str, new: str, replaced: bool
) -> None:
    from evoengine.cli.verbs.lock import run_lock
    from evoengine.engine.options.verbs import LockOptions

    store(tmp_path / "board.db", tmp_path / "cache", Entry(MISSION, mma(), 5.0))
    request = LockOptions(tmp_path / "evoengine.lock", db=str(tmp_path / "board.db"))
    run_lock(request, json_output=False)
    right = request.output.read_text()
    wrong = right.replace(old, new)
    assert wrong != right
    request.output.write_text(wrong)
    with pytest.raises(StoreError, match=r"evoengine\.lock"):
        run_lock(replace(request, check=True), json_output=False)
    if replaced:
        assert run_lock(request, json_output=False)
    else:
        with pytest.raises(StoreError, match="is not a lockfile"):
            run_lock(request, json_output=False)
    assert request.output.read_text() == (right if replaced else wrong)
