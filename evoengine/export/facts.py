"""Host-side facts of an exported kernel as C++: the problem, the sizes of a call, and its launches."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from evoengine.documents.escaping import c_string, comment
from evoengine.export.expression import AXES, to_cpp
from evoengine.kernel.records import LaunchSpec, StepSpec
from evoengine.model import DType, Problem, Value

_WIDTH: Final = 120
_NO_WINDOW: Final = -1

_PROBLEM: Final = """\
struct EvoProblem {{  // tuning problem: the traits are compiled in, other sizes work too
    static constexpr const char* NAME = {name};
    static constexpr int HEAD_DIM = {head_dim};
    static constexpr bool IS_BF16 = {is_bf16}, CAUSAL = {causal};
    static constexpr bool HAS_WINDOW_LEFT = {has_left}, HAS_WINDOW_RIGHT = {has_right}, HAS_SOFTCAP = {has_softcap};
    static constexpr bool HAS_SINK = {sink}, HAS_LSE = {lse}, PACKED = {packed};
    static constexpr int BATCH = {batch}, HEADS = {heads}, KV_HEADS = {kv_heads};
    static constexpr int SEQ_Q = {seq_q}, SEQ_KV = {seq_kv};
    static constexpr int WINDOW_LEFT = {left}, WINDOW_RIGHT = {right};
    static constexpr float SOFTCAP = {softcap}f;
{lengths}
}};"""

_SIZES: Final = """\
namespace evo_host {{
struct Sizes {{  // of one call
    long long {axes};

    long long workspace_bytes() const {{ return {workspace}; }}
    long long counters() const {{ return {counters}; }}
{grids}
}};

inline cudaError_t launch(void (*kernel)(AttentionParams), dim3 grid, int threads, int smem_bytes,
                          const AttentionParams& params, cudaStream_t stream) {{
    // Above 48 KiB, dynamic shared memory must be requested once per device; repeating the request costs little.
    if (smem_bytes > 48 * 1024) {{
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
        if (error != cudaSuccess) return error;
    }}
    kernel<<<grid, threads, smem_bytes, stream>>>(params);
    return cudaGetLastError();
}}

// All launches of one call, in order.
inline cudaError_t launch_steps(const Sizes& sizes, const AttentionParams& params, cudaStream_t stream) {{
    cudaError_t error = cudaSuccess;
{launches}
    return error;
}}
}}  // namespace evo_host"""


def problem_facts(problem: Problem) -> str:
    """Returns ``struct EvoProblem``: sizes, traits and features."""
    return _PROBLEM.format(
        name=c_string(problem.key),
        head_dim=problem.head_dim,
        is_bf16=_bool(problem.dtype is DType.BF16),
        causal=_bool(problem.causal),
        has_left=_bool(problem.window_left is not None),
        has_right=_bool(problem.window_right is not None),
        has_softcap=_bool(problem.softcap > 0),
        sink=_bool(problem.sink),
        lse=_bool(problem.lse),
        packed=_bool(problem.packed),
        batch=problem.batch,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        seq_q=problem.seq_q,
        seq_kv=problem.seq_kv,
        left=_NO_WINDOW if problem.window_left is None else problem.window_left,
        right=_NO_WINDOW if problem.window_right is None else problem.window_right,
        softcap=float(problem.softcap),
        lengths="\n".join((*_lengths("LENGTHS_Q", problem.lengths_q), *_lengths("LENGTHS_KV", problem.lengths_kv))),
    )


def launch_facts(problem: Problem, launch: LaunchSpec) -> str:
    """Returns ``evo_host::Sizes``, with the grids and memory that follow from the sizes, and the launches of a call."""
    names: dict[str, Value] = {**dict(launch.names), "head_dim": problem.head_dim}
    return _SIZES.format(
        axes=", ".join(AXES),
        workspace=to_cpp(launch.workspace_bytes, names),
        counters=to_cpp(launch.counters, names),
        grids="\n".join(_grids(launch.launches, names)),
        launches="\n".join(_launches(launch.launches)),
    )


def _grids(steps: Iterable[StepSpec], names: Mapping[str, Value]) -> Iterator[str]:
    for step in steps:
        axes = (f"static_cast<unsigned>({to_cpp(text, names)})" for text in step.grid)
        yield ""
        yield from _comment(" | ".join(step.grid))
        yield f"    dim3 grid_of_{step.entry}() const {{"
        yield f"        return dim3({(',' + chr(10) + ' ' * 20).join(axes)});"
        yield "    }"


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(comment(text), _WIDTH, initial_indent="    // ", subsequent_indent="    //   ")


def _launches(steps: Iterable[StepSpec]) -> Iterator[str]:
    for step in steps:
        call = f"launch({step.entry}, sizes.grid_of_{step.entry}(), {step.threads}, {step.smem_bytes}, params, stream)"
        yield f"    if (error == cudaSuccess) error = {call};"


def _lengths(name: str, lengths: tuple[int, ...]) -> Iterator[str]:
    """Yields a C++ array; without packed sequences it holds one zero, because C++ has no empty arrays."""
    text = f"static constexpr int {name}[] = {{{', '.join(map(str, lengths or (0,)))}}};"
    yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)


def _bool(value: bool) -> str:
    return "true" if value else "false"
