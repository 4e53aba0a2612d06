"""Manifest beside an exported cubin or PTX file: everything that a custom launcher needs, as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from evoengine import __version__
from evoengine.export.expression import AXES, EXACT_ROWS, names_of, to_python
from evoengine.export.record import ExportRecord
from evoengine.kernel.abi import LARGEST_ARGUMENT, PARAM_BYTES, PARAMS_DTYPE, SMALLEST_SCALE
from evoengine.kernel.records import Binary
from evoengine.kernel.tensor_maps import MAP_BYTES, MapSpec
from evoengine.model import DType, Problem
from evoengine.space.language.rules import NO_WINDOW, TRAIT_NAMES, problem_scope

FORMAT: Final = 1
_TRAITS: Final = frozenset(TRAIT_NAMES) - {"elem_bytes"}
"""Traits of a kernel; the size of its elements follows from ``dtype``."""
_LOG2_E: Final = math.log2(math.e)
_TYPES: Final = {"uint64": "pointer", "int64": "i64", "int32": "i32", "float32": "f32"}


def manifest(record: ExportRecord, binary: Binary, file_name: str, data: bytes) -> str:
    """Returns the manifest as JSON text.

    Args:
        record: Exported row.
        binary: Compilation of the row.
        file_name: Name of the code file.
        data: Contents of the code file.
    """
    evaluation, timing = record.evaluation, record.evaluation.timing
    document = {
        "evoengine_kernel": FORMAT,
        "written_by": __version__,
        "file": file_name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "arch": binary.arch,
        "traits": {name: value for name, value in problem_scope(record.problem).items() if name in _TRAITS},
        "params": {"bytes": PARAM_BYTES, "passing": "by value, the first argument", **_params(record.problem)},
        "tensor_maps": _maps(record),
        "axes": {"names": list(AXES), "without_a_window": NO_WINDOW},
        **_launch_document(record),
        "searched_for": record.problem.key,
        "device": record.device.name,
        "predicted": record.device.predicted,
        "median_us": None if timing is None else timing.median_us,
        "registers": binary.resources.registers,
        "row": record.row_id,
        "family": evaluation.config.family,
        "config": evaluation.config.as_dict(),
        "nvrtc": record.device.nvrtc,
        "template_hash": evaluation.template_hash,
        "source_hash": evaluation.source_hash,
        "code_hash": binary.code_hash,
    }
    return json.dumps(document, indent=1) + "\n"


def _launch_document(record: ExportRecord) -> dict[str, Any]:
    """Returns the launches of a call and its memory, as expressions over the axes and as numbers for the row's problem.

    Expressions are Python over ints with ``ceil_div``, ``round_up``, ``min`` and ``max``; most are valid C too.
    """
    launch, problem = record.launch, record.problem
    names = names_of(launch, problem)
    workspace = launch.workspace(problem)
    return {
        "launches": [
            {
                "entry": step.entry,
                "grid": [to_python(text, names) for text in step.grid],
                "grid_there": list(plan.grid),
                "threads": step.threads,
                "dynamic_smem_bytes": step.smem_bytes,
            }
            for step, plan in zip(launch.launches, launch.steps(problem), strict=True)
        ],
        "requires": to_python(EXACT_ROWS, names),
        "workspace_bytes": to_python(launch.workspace_bytes, names),
        "workspace_bytes_there": workspace.bytes,
        "counters": to_python(launch.counters, names),
        "counters_there": workspace.counters,
    }


def _maps(record: ExportRecord) -> dict[str, Any] | None:
    """Returns the second argument, with the arguments of ``cuTensorMapEncodeTiled``; None if there is none."""
    if not record.launch.maps:
        return None
    bf16 = record.problem.dtype is DType.BF16
    return {
        "bytes": MAP_BYTES * len(record.launch.maps),
        "passing": "by value, the second argument: an encoded CUtensorMap of each tensor, in this order",
        "data_type": f"CU_TENSOR_MAP_DATA_TYPE_{'BFLOAT16' if bf16 else 'FLOAT16'}",
        "interleave": "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "l2_promotion": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "oob_fill": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
        "stride_of_a_size_of_1": "any multiple of 16",
        "maps": [_map(item, record.problem) for item in record.launch.maps],
    }


def _map(spec: MapSpec, problem: Problem) -> dict[str, Any]:
    name = spec.tensor
    rows, heads = ("rows_q", "heads") if name in ("q", "o") else ("rows_kv", "kv_heads")
    swizzle = f"{spec.swizzle_bytes}B" if spec.swizzle_bytes else "NONE"
    row, head, batch = (f"{problem.dtype.bytes} * {name}_{axis}_stride" for axis in ("row", "head", "batch"))
    sizes: list[int | str] = [problem.head_dim, rows, heads, "memory_batch"]
    strides, box = [row, head, batch], [spec.box_columns, spec.box_rows, 1, 1]
    if spec.grouped:
        group = "heads // kv_heads"
        sizes[2:3] = ["kv_heads"]
        sizes.insert(1, group)
        strides = [head, row, f"{group} * {head}", batch]
    return {
        "tensor": name,
        "sizes": sizes,
        "strides_bytes": strides,
        "box": [spec.box_columns, group, f"{spec.box_rows} // ({group})", 1, 1] if spec.grouped else box,
        "element_strides": [1] * len(sizes),
        "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{swizzle}",
    }


def _params(problem: Problem) -> dict[str, Any]:
    """Returns the fields of the first argument, and those that a launcher must compute as expressions, in order."""
    fields: Mapping[str, tuple[Any, ...]] = PARAMS_DTYPE.fields or {}
    names = {} if problem.softcap else {"softcap_scale": "positive_scale"}  # one field has two meanings
    computed = {"scale_log2": f"softmax_scale * {_LOG2_E}"}
    if problem.softcap:
        computed["softcap_log2"] = f"softcap * {_LOG2_E}"
        computed["softcap_scale"] = f"min(max(softmax_scale / softcap, -{LARGEST_ARGUMENT}), {LARGEST_ARGUMENT})"
    else:
        computed["positive_scale"] = f"max(abs(scale_log2), {SMALLEST_SCALE})"
    return {
        "fields": [
            {"name": names.get(name, name), "offset": entry[1], "type": _TYPES[entry[0].name]}
            for name, entry in fields.items()
        ],
        "computed": computed,
    }
