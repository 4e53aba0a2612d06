"""Export as one self-contained ``.cu`` file: provenance, kernel, launcher, self-checking ``main``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final

from evoengine import __version__
from evoengine.documents.escaping import comment
from evoengine.errors import UsageError
from evoengine.export.facts import (
    launch_facts,
    problem_facts,
    support_code,
    tensor_map_includes,
    tensor_map_support,
)
from evoengine.export.record import ExportRecord
from evoengine.target import arch_number

_WIDTH: Final = 120
_RULE: Final = "// ---- {title} "
_KERNEL: Final = re.compile(r"__global__(?![^;{]*(?:__launch_bounds__|__maxnreg__))(?=[^;{]*\{)")
"""Definition of a kernel without launch bounds or a register cap."""


def export_cu(record: ExportRecord) -> str:
    """Returns the text of a ``.cu`` file that ``nvcc -arch=sm_XX file.cu -o file`` compiles to a self-checking program.

    Raises:
        UsageError: The evaluation has no source, or a launch expression has no C++ equivalent.
    """
    evaluation = record.evaluation
    if not evaluation.source:
        raise UsageError(
            f"row {record.row_id or evaluation.config.key} has no stored source: it ended as {evaluation.status.value}"
        )
    parts = (
        "\n".join(f"// {line}".rstrip() for line in _provenance(record)),
        support_code("includes.cu"),
        tensor_map_includes(record.launch),
        _section("kernel, as it was compiled and evaluated"),
        arch_guard(record),
        with_register_cap(evaluation.source.strip("\n"), record.maxrregcount),
        _section("host side: problem, sizes and launches"),
        problem_facts(record.problem),
        support_code("arithmetic.cu"),
        tensor_map_support(record.launch),
        launch_facts(record.problem, record.launch),
        support_code("launcher.cu"),
        support_code("selfcheck.cu"),
    )
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def nvcc_target(arch: str) -> str:
    """Returns the nvcc option that compiles for an architecture.

    With ``-arch=sm_90a`` nvcc 13.0 would also generate PTX for plain ``compute_90``, which lacks the instructions.
    """
    return f"-arch={arch}" if arch[-1].isdigit() else f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"


def arch_guard(record: ExportRecord) -> str:
    """Returns a check that stops a compilation for an architecture that the kernel was not searched for.

    Newer architectures pass, unless the kernel uses instructions of one architecture only. An older one might lack
    instructions or shared memory, and nvcc's default is older than all that the kernels support.
    """
    option = comment(nvcc_target(record.device.arch))
    if record.only_arch:
        number = arch_number(record.only_arch)
        condition = f"!defined(__CUDA_ARCH_FEAT_SM{number}_ALL)"
        reason = f"this kernel uses instructions of {comment(record.only_arch)} only: compile with nvcc {option}"
    else:
        condition = f"__CUDA_ARCH__ < {10 * arch_number(record.device.arch)} && !defined(EVO_ANY_ARCH)"
        reason = (
            f"this kernel was searched for {comment(record.device.arch)}: compile with nvcc {option} or for a newer "
        )
        reason += "architecture (-DEVO_ANY_ARCH tries an older one)"
    return f"#if defined(__CUDA_ARCH__) && {condition}\n#error {reason}\n#endif"


def _provenance(record: ExportRecord) -> Iterator[str]:
    evaluation, device = record.evaluation, record.device
    arch = comment(device.arch)
    yield f"Fused attention forward, found by EvoEngine {__version__}."
    yield ""
    yield f"  compile and run  nvcc {nvcc_target(arch)} best.cu -o best && ./best"
    yield "                   with -DEVO_NO_MAIN as a library: evo_attention_launch"
    yield "  exit code        0 correct, 1 a wrong result, 2 a CUDA error, 3 no NVIDIA GPU or driver that can run it"
    facts = {
        "problem": f"{record.problem.key}  (batch x heads x seq x head_dim)",
        "row": record.row_id,
        "family": evaluation.config.family,
        "config": str(evaluation.config),
        "time": _time(record),
        "parity": _parity(record),
        "resources": _resources(record),
        "device": f"{device.name}{' (emulated; times from a latency model)' if device.predicted else ''}",
        "architecture": arch,
        "driver": device.driver,
        "NVRTC": device.nvrtc,
        "register cap": str(record.maxrregcount) if record.maxrregcount else "",
        "template hash": evaluation.template_hash,
        "source hash": evaluation.source_hash,
        "code hash": evaluation.code_hash,
        "evaluated": record.evaluated_at,
        "exported": record.exported_at,
    }
    for name, value in facts.items():
        lines = textwrap.wrap(comment(value), _WIDTH - 24)
        for number, line in enumerate(lines):
            yield f"  {name if number == 0 else '':<16} {line}"


def _time(record: ExportRecord) -> str:
    timing = record.evaluation.timing
    if timing is None:
        return f"none: the evaluation ended as {record.evaluation.status.value}"
    if timing.predicted:
        return f"{timing.median_us:.3f} us predicted by {timing.method}, not measured"
    text = f"median {timing.median_us:.3f} us measured ({timing.method})"
    text += f", 95 % CI {timing.low_us:.3f} to {timing.high_us:.3f} us"
    if timing.samples_us:
        text += f", {len(timing.samples_us)} samples"
    if timing.baseline_us is not None:
        text += f"; {timing.baseline} took {timing.baseline_us:.3f} us, {timing.speedup:.2f} times as long"
    return text


def _parity(record: ExportRecord) -> str:
    verdict = record.evaluation.verdict
    if verdict is None:
        return "not checked"
    outcome = "passed" if verdict.passed else f"FAILED: {verdict.reason}"
    bound = f"bound {verdict.tolerance:.3e}; closest to its bound: {verdict.worst_case}"
    return f"{outcome} in {verdict.cases} cases, max error {verdict.max_error:.3e}; {bound}"


def _resources(record: ExportRecord) -> str:
    resources = record.evaluation.resources
    if resources is None:
        return ""
    return (
        f"{resources.registers} registers, {resources.spill_bytes} bytes spilled, "
        f"{resources.smem_bytes} bytes shared memory, {resources.threads} threads"
    )


def with_register_cap(source: str, maxrregcount: int) -> str:
    """Writes the register cap, which was a compiler option, into the text, so that ``nvcc`` needs no option.

    A kernel with launch bounds ignores the option, so it gets no cap.
    """
    return _KERNEL.sub(f"__global__ __maxnreg__({maxrregcount})", source) if maxrregcount > 0 else source


def _section(title: str) -> str:
    return _RULE.format(title=title).ljust(_WIDTH, "-")
