"""Bad arguments for the functions and records that ``import evoengine`` offers."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import torch

import evoengine
from evoengine.emulator import Emulator
from evoengine.errors import EvoEngineError
from tests.fuzz.mutation import byte_damage, line_damage
from tests.fuzz.samples import LANDSCAPE
from tests.fuzz.values import LONG

LONGEST_MESSAGE: Final = 300


@dataclass(frozen=True)
class ApiCase:
    """A call from Python with something wrong in it."""

    name: str
    call: Callable[[], object]


def objection(case: ApiCase) -> str:
    """Runs a case; returns what is wrong with the way it ends, empty if nothing is.

    A call may succeed. An error must be an ``EvoEngineError``, ``TypeError`` or ``ValueError`` of one short line.
    """
    try:
        case.call()
    except (EvoEngineError, TypeError, ValueError) as error:
        text = str(error)
        if type(error) not in (TypeError, ValueError) and not isinstance(error, EvoEngineError):
            return f"{case.name}: {type(error).__name__}: {text[:150]!a}"
        if not text or len(text) >= LONGEST_MESSAGE or not text.isprintable():
            return f"{case.name}: {type(error).__name__} of {len(text)} characters: {text[:150]!a}"
        return f"{case.name}: {text}" if text.startswith("unexpected") else ""
    except Exception as error:  # noqa: BLE001 - the finding
        return f"{case.name}: {type(error).__name__}: {str(error)[:150]!a}"
    return ""


class _Odd:
    """An object whose every special method fails or is missing."""

    def __repr__(self) -> str:
        return "<odd\n\x1b[31m>"

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


_OBJECTS: Final[Mapping[str, Any]] = {
    "None": None,
    "True": True,
    "0": 0,
    "-1": -1,
    "2^31": 2**31,
    "2^63": 2**63,
    "2^200": 2**200,
    "-2^200": -(2**200),
    "0.5": 0.5,
    "-0.0": -0.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "1e308": 1e308,
    "complex": 1j,
    "empty text": "",
    "text": "banana",
    "number as text": "8",
    "control characters": "\x1b[31m\n\u202e",
    "surrogate": "\udcff",
    "NUL": "a\0b",
    "long text": "x" * LONG,
    "bytes": b"\xff",
    "list": [],
    "list of lists": [[1, 2], [3]],
    "tuple": (1, 2, 3),
    "pair": (-5, 2**70),
    "dict": {"a": 1},
    "set": {1},
    "object": object(),
    "odd object": _Odd(),
    "class": int,
    "function": len,
    "tensor": torch.zeros(3),
    "number tensor": torch.tensor(2),
    "array": np.ones(3),
    "NumPy nan": np.float64("nan"),
    "NumPy number": np.int64(3),
    "dtype": torch.float16,
    "ellipsis": ...,
    "module": inspect,
}


def _tensors() -> dict[str, Any]:
    """Tensors that no call expects in the place of one of shape (1, 2, 8, 16) and type fp16."""
    base = torch.randn(1, 2, 8, 16).half()
    return {
        "no axis": torch.tensor(1.0).half(),
        "three axes": base[0],
        "five axes": base[None],
        "no element": base[:, :, :0],
        "no batch": base[:0],
        "no head": base[:, :0],
        "no head_dim": base[..., :0],
        "other batch": base.expand(3, 2, 8, 16),
        "other heads": base[:, :1].expand(1, 3, 8, 16),
        "other head_dim": base[..., :7],
        "float64": base.double(),
        "float32": base.float(),
        "bf16": base.bfloat16(),
        "int8": base.to(torch.int8),
        "bool": base > 0,
        "complex": base.float() * 1j,
        "float8": base.float().to(torch.float8_e4m3fn),
        "sparse": base.float().to_sparse(),
        "meta": base.to("meta"),
        "nan": base * float("nan"),
        "stride 0": torch.zeros(1).half().expand(1, 2, 8, 16),
        "transposed": base.transpose(-1, -2).contiguous().transpose(-1, -2),
        "odd strides": torch.randn(1, 2, 8, 33).half()[..., 1::2],
        "needs gradient": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base.clone()),
        "nested": torch.nested.nested_tensor([base[0, 0].float(), base[0, 0, :3].float()]),
        "quantized": torch.quantize_per_tensor(base.float(), 0.1, 0, torch.qint8),
        "conjugate": torch.conj(base.float() * 1j),
        "lengths": torch.tensor([0, 8], dtype=torch.int32),
        "decreasing lengths": torch.tensor([8, 0], dtype=torch.int32),
        "lengths beyond": torch.tensor([0, 2**31 - 1], dtype=torch.int32),
        "negative lengths": torch.tensor([-(2**31), 8], dtype=torch.int32),
        "one length": torch.tensor([0], dtype=torch.int32),
        "long lengths": torch.tensor([0, 8]),
        "sink": torch.zeros(2),
        "sink of other heads": torch.zeros(3),
    }


def api_cases(rng: random.Random) -> Iterator[ApiCase]:
    """Yields bad calls of every public function and record, one argument at a time; endless."""
    streams = [
        _attention_cases(rng, evoengine.attention, "attention"),
        _attention_cases(rng, evoengine.explain, "explain"),
        _record_cases(rng, evoengine.Problem, {"batch": 1, "heads": 2, "seq_q": 8, "head_dim": 16}),
        _search_cases(rng),
        _tune_cases(rng),
        _emulator_cases(rng),
    ]
    while True:
        for stream in streams:
            yield next(stream)


def _attention_cases(rng: random.Random, function: Callable[..., Any], label: str) -> Iterator[ApiCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about types that it will give up
        tensors = _tensors()
    everything: Mapping[str, Any] = {**_OBJECTS, **tensors}
    options = [name for name in inspect.signature(evoengine.attention).parameters if name not in ("q", "k", "v")]
    good = torch.randn(1, 2, 8, 16).half()
    packed = torch.randn(8, 2, 16).half()
    starts = torch.tensor([0, 3, 8], dtype=torch.int32)
    while True:
        qkv = dict.fromkeys("qkv", good)
        arguments: dict[str, Any] = {}
        if rng.random() < 0.25:
            qkv = dict.fromkeys("qkv", packed)
            arguments = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}
        chosen = rng.choice(["q", "k", "v", "qkv", "pair", *options])
        kind = rng.choice(sorted(tensors if chosen in ("q", "k", "v", "qkv") and rng.random() < 0.7 else everything))
        value = everything[kind]
        if chosen in qkv:
            qkv[chosen] = value
        elif chosen == "qkv":
            qkv = dict.fromkeys("qkv", value)
        elif chosen == "pair":
            names = rng.sample(options, 2)
            arguments |= {name: everything[rng.choice(sorted(everything))] for name in names}
            chosen = " and ".join(names)
        else:
            arguments[chosen] = value
        yield ApiCase(f"{label} {chosen} {kind}", _called(function, *qkv.values(), **arguments))


def _called(function: Callable[..., Any], *positional: Any, **named: Any) -> Callable[[], object]:
    def call() -> object:
        result = function(*positional, **named)
        return str(result) if isinstance(result, evoengine.Explanation) else result

    return call


def _record_cases(rng: random.Random, record: Callable[..., Any], good: Mapping[str, Any]) -> Iterator[ApiCase]:
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    while True:
        name, kind = rng.choice(names), rng.choice(sorted(_OBJECTS))
        made = {**good, name: _OBJECTS[kind]}
        yield ApiCase(f"{record.__name__} {name} {kind}", _used(record, made))


def _used(record: Callable[..., Any], made: Mapping[str, Any]) -> Callable[[], object]:
    def call() -> object:
        problem = record(**made)
        return problem.key, problem.flops, problem.min_bytes

    return call


def _search_cases(rng: random.Random) -> Iterator[ApiCase]:
    """Yields searches in a replay, which takes milliseconds."""
    names = [field.name for field in fields(evoengine.SearchOptions)]
    replay = {"device": f"replay:{LANDSCAPE}", "db": "own.db", "budget": 2}
    while True:
        kind = rng.choice(sorted(_OBJECTS))
        name = rng.choice(["", "options", "observer", *names])
        if not name:
            yield ApiCase(f"search {kind}", _called(evoengine.search, _OBJECTS[kind], _options(replay)))
        elif name in ("options", "observer"):
            named = {"options": _options(replay), name: _OBJECTS[kind]}
            if kind == "None" and name == "options":
                continue
            yield ApiCase(f"search {name} {kind}", _called(evoengine.search, "default", **named))
        else:
            yield ApiCase(f"SearchOptions {name} {kind}", _searched({**replay, name: _OBJECTS[kind]}))


def _options(values: Mapping[str, Any]) -> Any:
    return evoengine.SearchOptions(**values)


def _searched(values: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: evoengine.search("default", _options(values))


def _tune_cases(rng: random.Random) -> Iterator[ApiCase]:
    """Yields searches that must be refused before a process is started for them."""
    good = torch.randn(1, 2, 8, 16).half()
    bad = ["empty text", "control characters", "2^200", "object", "list", "nan", "-1", "0.5", "odd object", "bytes"]
    while True:
        name, kind = rng.choice(("budget", "seed", "leaderboard", "window", "softcap", "layout")), rng.choice(bad)
        if name in ("leaderboard", "softcap") and kind in ("empty text", "control characters", "0.5", "None"):
            continue
        yield ApiCase(f"tune {name} {kind}", _called(evoengine.tune, good, good, good, **{name: _OBJECTS[kind]}))
        name = rng.choice(("budget", "seed", "time_limit_s", "most_sharing_cost", "leaderboard", "lockfile", "model"))
        kind = rng.choice([kind for kind in bad if name == "lockfile" or kind not in ("empty text", "0.5")])
        if (name, kind) != ("leaderboard", "control characters"):
            odd = {"model": torch.nn.Identity(), name: _OBJECTS[kind]}
            yield ApiCase(f"tune_model {name} {kind}", _called(evoengine.tune_model, odd.pop("model"), good, **odd))


_PTX: Final = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 twice_param_0, .param .u32 twice_param_1)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [twice_param_0];
    ld.param.u32 %r1, [twice_param_1];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $done;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r3, [%rd4];
    add.s32 %r4, %r3, %r3;
    st.global.u32 [%rd4], %r4;
$done:
    ret;
}
"""


def _emulator_cases(rng: random.Random) -> Iterator[ApiCase]:
    """Yields damaged PTX, and launches with odd arguments."""
    lines = line_damage(rng, _PTX)
    names = [name for name in inspect.signature(Emulator.launch).parameters if name != "self"]
    while True:
        kind, text = next(lines)
        yield ApiCase(f"Emulator {kind}", _launched(text))
        kind, content = rng.choice(list(byte_damage(rng, _PTX.encode())))
        yield ApiCase(f"Emulator {kind}", _launched(content.decode("latin-1")))
        name, odd = rng.choice([*names, "argument"]), rng.choice(sorted(_OBJECTS))
        arguments: dict[str, Any] = {"grid": 1, "block": 8, "args": [np.zeros(8, np.int32), 8]}
        if name == "argument":
            arguments["args"] = [np.zeros(8, np.int32), _OBJECTS[odd]]
        else:
            arguments[name] = _OBJECTS[odd]
        if name not in ("deadline_s", "memory"):
            arguments.setdefault("deadline_s", 5.0)
        yield ApiCase(f"launch {name} {odd}", _launched(_PTX, **arguments))
        yield ApiCase(f"Emulator of {odd}", _called(Emulator, _OBJECTS[odd]))


def _launched(ptx: str, **arguments: Any) -> Callable[[], object]:
    given = arguments or {"grid": 1, "block": 8, "args": [np.zeros(8, np.int32), 8], "deadline_s": 5.0}
    return lambda: Emulator(ptx).launch(**given)
