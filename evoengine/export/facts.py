"""Host-side facts of an exported kernel as C++: the problem, the sizes of a call, and its launches."""

from __future__ import annotations

import importlib.resources
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from evoengine.documents.escaping import c_string, comment
from evoengine.export.expression import AXES, EXACT_ROWS, names_of, to_cpp
from evoengine.kernel.records import LaunchSpec, StepSpec
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import DType, Problem, Value
from evoengine.space.language.rules import NO_WINDOW

_WIDTH: Final = 120

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
    bool has_exact_rows() const {{ return {exact_rows}; }}  // whether the kernel finds the query of each of its rows
{grids}
}};
{set_maps}
inline cudaError_t launch(void (*kernel)({types}), dim3 grid, int threads, int smem_bytes,
                          {declared}, cudaStream_t stream) {{
    // Above 48 KiB, dynamic shared memory must be requested once per device; repeating the request costs little.
    if (smem_bytes > 48 * 1024) {{
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
        if (error != cudaSuccess) return error;
    }}
    kernel<<<grid, threads, smem_bytes, stream>>>({passed});
    return cudaGetLastError();
}}

// All launches of one call, in order.
inline cudaError_t launch_steps(const Sizes& sizes, const AttentionParams& params, cudaStream_t stream) {{
    cudaError_t error = cudaSuccess;
{prepare}{launches}
    return error;
}}
}}  // namespace evo_host"""

_SET_MAPS: Final = """
// Sets the second argument of a call.
inline cudaError_t set_maps(const Sizes& sizes, const AttentionParams& p, TensorMaps& maps) {{
    cudaError_t error = cudaSuccess;
{maps}
    return error;
}}
"""
_SET_MAP: Final = """\
    if (error == cudaSuccess)
        error = set_map<{number}>(maps.{name}, {{p.{name}, sizes.{rows}, sizes.{heads}, sizes.memory_batch,
                                  p.{name}_row_stride, p.{name}_head_stride, p.{name}_batch_stride,
                                  {box_rows}, {box_columns}, {swizzle}, {group}}});"""


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
        left=NO_WINDOW if problem.window_left is None else problem.window_left,
        right=NO_WINDOW if problem.window_right is None else problem.window_right,
        softcap=float(problem.softcap),
        lengths="\n".join((*_lengths("LENGTHS_Q", problem.lengths_q), *_lengths("LENGTHS_KV", problem.lengths_kv))),
    )


def launch_facts(problem: Problem, launch: LaunchSpec) -> str:
    """Returns ``evo_host::Sizes``, with the grids and memory that follow from the sizes, and the launches of a call.

    If there are tensor maps, it calls ``set_map`` of :func:`tensor_map_support`.
    """
    names = names_of(launch, problem)
    return _SIZES.format(
        axes=", ".join(AXES),
        workspace=to_cpp(launch.workspace_bytes, names),
        counters=to_cpp(launch.counters, names),
        exact_rows=to_cpp(EXACT_ROWS, names),
        grids="\n".join(_grids(launch.launches, names)),
        set_maps=_set_maps(launch.maps),
        types="AttentionParams, TensorMaps" if launch.maps else "AttentionParams",
        declared="const AttentionParams& params" + (", const TensorMaps& maps" if launch.maps else ""),
        passed=_passed(launch),
        prepare="    TensorMaps maps;\n    error = set_maps(sizes, params, maps);\n" if launch.maps else "",
        launches="\n".join(_launches(launch)),
    )


def tensor_map_includes(launch: LaunchSpec) -> str:
    """Returns the includes of :func:`tensor_map_support`."""
    return "#include <cudaTypedefs.h>\n\n#include <cstring>" if launch.maps else ""


def tensor_map_support(launch: LaunchSpec) -> str:
    """Returns the host code that encodes tensor maps; empty for a launch without any."""
    if not launch.maps:
        return ""
    return support_code("tensor_maps.cu")


def support_code(name: str) -> str:
    """Returns the text of a file of this package that is part of exports."""
    return (importlib.resources.files("evoengine.export") / name).read_text(encoding="utf-8")


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


def _launches(launch: LaunchSpec) -> Iterator[str]:
    for step in launch.launches:
        sizes = f"sizes.grid_of_{step.entry}(), {step.threads}, {step.smem_bytes}"
        yield f"    if (error == cudaSuccess) error = launch({step.entry}, {sizes}, {_passed(launch)}, stream);"


def _passed(launch: LaunchSpec) -> str:
    return "params, maps" if launch.maps else "params"


def _set_maps(maps: tuple[MapSpec, ...]) -> str:
    if not maps:
        return ""
    lines = (
        _SET_MAP.format(
            number=number,
            name=item.tensor,
            rows="rows_q" if item.tensor in ("q", "o") else "rows_kv",
            heads="heads" if item.tensor in ("q", "o") else "kv_heads",
            box_rows=item.box_rows,
            box_columns=item.box_columns,
            swizzle=item.swizzle_bytes,
            group="sizes.heads / sizes.kv_heads" if item.grouped else "0",
        )
        for number, item in enumerate(maps)
    )
    return _SET_MAPS.format(maps="\n".join(lines))


def _lengths(name: str, lengths: tuple[int, ...]) -> Iterator[str]:
    """Yields a C++ array; without packed sequences it holds one zero, because C++ has no empty arrays."""
    text = f"static constexpr int {name}[] = {{{', '.join(map(str, lengths or (0,)))}}};"
    yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)


def _bool(value: bool) -> str:
    return "true" if value else "false"
