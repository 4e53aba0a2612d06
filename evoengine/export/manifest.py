"""Manifest beside an exported cubin or PTX file: everything that a custom launcher needs, as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from evoengine import __version__
from evoengine.export.expression import AXES, to_python
from evoengine.export.record import ExportRecord
from evoengine.kernel.abi import PARAM_BYTES, PARAMS_DTYPE
from evoengine.kernel.records import Binary
from evoengine.model import Value
from evoengine.space.language.rules import problem_scope

FORMAT: Final = 1
_TRAITS: Final = (
    "dtype",
    "head_dim",
    "causal",
    "has_window_left",
    "has_window_right",
    "has_softcap",
    "has_sink",
    "has_lse",
    "packed",
)
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
        "params": {"bytes": PARAM_BYTES, "passing": "by value, the only argument", "fields": _fields()},
        "axes": {"names": list(AXES), "without_a_window": -1},
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
    names: dict[str, Value] = {**dict(launch.names), "head_dim": problem.head_dim}
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
        "workspace_bytes": to_python(launch.workspace_bytes, names),
        "workspace_bytes_there": workspace.bytes,
        "counters": to_python(launch.counters, names),
        "counters_there": workspace.counters,
    }


def _fields() -> list[dict[str, Any]]:
    fields: Mapping[str, tuple[Any, ...]] = PARAMS_DTYPE.fields or {}
    return [{"name": name, "offset": entry[1], "type": _TYPES[entry[0].name]} for name, entry in fields.items()]
