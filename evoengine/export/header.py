"""Export as a C++ header with one or more kernels and a function that chooses one per call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from evoengine import __version__
from evoengine.documents.escaping import comment
from evoengine.errors import UsageError
from evoengine.export.cu import arch_guard, nvcc_target, with_register_cap
from evoengine.export.facts import (
    launch_facts,
    problem_facts,
    support_code,
    tensor_map_includes,
    tensor_map_support,
)
from evoengine.export.record import ExportRecord

_INCLUDE: Final = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]+>[^\n]*\n", re.MULTILINE)
_MAIN: Final = re.compile(r"\nint main\(.*?\n}\n", re.DOTALL)

_HEAD: Final = """\
// Fused attention forward, exported by EvoEngine {version}. Needs nvcc and the CUDA runtime.
//
//   #include "{name}"
//   {evo}::Call call;  call.q = ...;  cudaError_t error = {evo}::attention(call, stream);
//
// {evo}::find(call) returns the kernel for a call: among those with the call's traits, the nearest in size. It returns
// null if there is none; {evo}::attention then returns cudaErrorNotSupported and does nothing.
//
//   nvcc -x cu {target} -DEVO_ATTENTION_MAIN {name} -o check && ./check     # checks and times every kernel
//
{kernels}
#ifndef {guard}
#define {guard}
#ifndef EVO_ATTENTION_MAIN
#define EVO_NO_MAIN
#endif
#pragma nv_diagnostic push
#pragma nv_diag_suppress 177  // some constants of a kernel are read only under other configs
"""

_BINDING: Final = """\
// ---- interface to the dispatcher ------------------------------------------------------------------------------------
using P = EvoProblem;
inline cudaError_t run(const Call& c, cudaStream_t stream) {
    return evo_attention_launch(c.q, c.k, c.v, c.o, c.batch, c.heads, c.kv_heads, c.seq_q, c.seq_kv,
                                strides<EvoStrides>(c.q_strides), strides<EvoStrides>(c.k_strides),
                                strides<EvoStrides>(c.v_strides), strides<EvoStrides>(c.o_strides), c.softmax_scale,
                                stream, extras<EvoExtras>(c));
}
inline evo_host::Sizes sizes(const Call& c) {
    return evo_sizes(c.batch, c.heads, c.kv_heads, c.seq_q, c.seq_kv, extras<EvoExtras>(c));
}
inline long long workspace(const Call& c) { return sizes(c).workspace_bytes(); }
inline long long count(const Call& c) { return sizes(c).counters(); }
const Kernel KERNEL = {P::NAME, does<P>, distance<P>, run, workspace, count};"""

_TAIL: Final = """\
namespace {evo} {{
// Returns the kernel for a call; null if no kernel has the call's traits.
inline const Kernel* find(const Call& call) {{
    const Kernel* const kernels[] = {{{kernels}}};
    const Kernel* found = nullptr;
    for (const Kernel* kernel : kernels)
        if (kernel->does(call) && (found == nullptr || kernel->distance(call) < found->distance(call))) found = kernel;
    return found;
}}
inline long long workspace_bytes(const Call& call) {{
    const Kernel* kernel = find(call);
    return kernel == nullptr ? 0 : kernel->workspace_bytes(call);
}}
inline long long counters(const Call& call) {{
    const Kernel* kernel = find(call);
    return kernel == nullptr ? 0 : kernel->counters(call);
}}
// Runs a call on a stream, asynchronously.
inline cudaError_t attention(const Call& call, cudaStream_t stream) {{
    const Kernel* kernel = find(call);
    return kernel == nullptr ? cudaErrorNotSupported : kernel->launch(call, stream);
}}
}}  // namespace {evo}

#ifdef EVO_ATTENTION_MAIN
int main() {{
    int failed = 0;
{checks}
    return failed;
}}
#endif  // EVO_ATTENTION_MAIN
#pragma nv_diagnostic pop
#endif  // {guard}
"""


def export_header(records: Sequence[ExportRecord], name: str) -> str:
    """Returns the text of the header; its namespace is ``evo_`` and the file's stem.

    Args:
        records: Rows with distinct problems and sources.
        name: Name of the file.

    Raises:
        UsageError: A row has no source, or a launch expression has no C++ equivalent.
    """
    for record in records:
        if not record.evaluation.source:
            raise UsageError(f"row {record.row_id} has no stored source: it ended as {record.evaluation.status.value}")
    evo = "evo_" + re.sub(r"\W", "_", name.partition(".")[0])
    guard = f"{evo.upper()}_H"
    includes = sorted({line.strip() for record in records for line in _INCLUDE.findall(record.evaluation.source)})
    maps = next(filter(None, (tensor_map_includes(record.launch) for record in records)), "")
    spaces = [f"kernel_{number}" for number in range(len(records))]
    head = _HEAD.format(
        version=__version__,
        name=comment(name),
        target=comment(nvcc_target(max((one.device.arch for one in records), key=lambda arch: (len(arch), arch)))),
        kernels="\n".join(map(_line, records)),
        evo=evo,
        guard=guard,
    )
    tail = _TAIL.format(
        kernels=", ".join(f"&detail::{space}::KERNEL" for space in spaces),
        checks="\n".join(
            f"    failed |= {evo}::detail::{space}::evo_check::check_and_time(20260101);" for space in spaces
        ),
        evo=evo,
        guard=guard,
    )
    parts = (
        head,
        support_code("includes.cu") + "\n" + "\n".join(includes),
        maps,
        support_code("dispatch.h")
        .replace("namespace evo ", f"namespace {evo} ")
        .replace("// namespace evo", f"// namespace {evo}"),
        *(part for space, record in zip(spaces, records, strict=True) for part in _kernel(evo, space, record)),
        tail,
    )
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _line(record: ExportRecord) -> str:
    timing = record.evaluation.timing
    time = "" if timing is None else f", {timing.median_us:.2f} us {'predicted' if timing.predicted else 'measured'}"
    return f"//   {comment(f'{record.problem.key} on {record.device.name}{time}, row {record.row_id}')}"


def _kernel(evo: str, space: str, record: ExportRecord) -> Iterator[str]:
    """Yields one kernel with its launcher and its check, in an anonymous namespace inside its own namespace."""
    begin = f"namespace {evo} {{\nnamespace detail {{\nnamespace {space} {{"
    end = f"}}  // namespace {space}\n}}  // namespace detail\n}}  // namespace {evo}"
    source = with_register_cap(_INCLUDE.sub("", record.evaluation.source).strip("\n"), record.maxrregcount)
    yield f"// ==== {comment(f'{record.problem.key}, row {record.row_id}')} ".ljust(120, "=")
    yield f"{begin}\nnamespace {{"
    yield arch_guard(record)
    yield source.replace('extern "C" __global__', "__global__")
    yield problem_facts(record.problem)
    yield support_code("arithmetic.cu")
    yield tensor_map_support(record.launch)
    yield launch_facts(record.problem, record.launch)
    yield support_code("launcher.cu").replace('extern "C" cudaError_t', "inline cudaError_t")
    yield _BINDING
    yield _MAIN.sub("\n", support_code("selfcheck.cu"))
    yield f"}}  // namespace\n{end}"
