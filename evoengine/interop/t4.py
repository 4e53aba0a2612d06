"""Results in the T4 format, the open autotuning results schema that Kernel Tuner and KTT write.

Schema 1.0.0 (``github.com/odgaard/TuningSchema``, ``T4/results-schema.json``). Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from evoengine import __version__
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.leaderboard.records import Record
from evoengine.model import Evaluation, Status
from evoengine.space.search_space import SearchSpace

SCHEMA: Final = "1.0.0"

_INVALIDITY: Final[Mapping[Status, str]] = {
    Status.OK: "correct",
    Status.PRUNED: "correct",
    Status.INVALID_CONFIG: "constraints",
    Status.RENDER_FAILED: "compile",
    Status.COMPILE_FAILED: "compile",
    Status.RESOURCE_LIMIT: "compile",
    Status.LAUNCH_FAILED: "runtime",
    Status.CRASHED: "runtime",
    Status.TIMEOUT: "timeout",
    Status.PARITY_FAILED: "correctness",
}


def t4_document(landscape: Landscape, family: RecordedFamily) -> dict[str, Any]:
    """Returns one family of a landscape as T4 results."""
    return {
        "schema_version": SCHEMA,
        "metadata": {
            "timeunit": "milliseconds",
            "device": landscape.device.name,
            "predicted": landscape.device.predicted,
            "objective": landscape.method,
            "problem": "" if landscape.problem is None else landscape.problem.key,
            "recorded_at": landscape.provenance.recorded_at,
        },
        "results": [_result(landscape, evaluation) for evaluation in family.evaluations],
    }


def t4_results(records: Sequence[Record], space: SearchSpace) -> dict[str, Any]:
    """Returns leaderboard rows as T4 results, without duplicates, which never ran.

    Args:
        records: Rows of one family, problem, device and method; at least one.
        space: Search space of the family.
    """
    key = records[0].study.key
    evaluations = tuple(one.evaluation for one in records if one.evaluation.status is not Status.DUPLICATE)
    family = RecordedFamily(space, key.space_key, records[0].evaluation.template_hash, len(evaluations), evaluations)
    newest = max(one.row.created_at for one in records)
    provenance = LandscapeSource(
        evoengine=__version__,
        recorded_at=newest.isoformat(timespec="seconds") + "Z",
        command="",
        checks="the parity gate of the search",
        sampling=f"what {key.strategy} proposed",
    )
    landscape = Landscape(key.problem, key.device, {}, key.method, (family,), provenance)
    document = t4_document(landscape, family)
    document["metadata"]["family"] = space.family
    return document


def _result(landscape: Landscape, evaluation: Evaluation) -> dict[str, Any]:
    seconds = evaluation.stage_seconds
    return {
        "timestamp": landscape.provenance.recorded_at,
        "configuration": evaluation.config.as_dict(),
        "objectives": ["time"],
        "times": {
            "compilation_time": 1e3 * seconds.get("compile", 0.0),
            "validation": 1e3 * seconds.get("parity", 0.0),
            "benchmark": 1e3 * seconds.get("bench", 0.0),
            "framework": 0,
            "search_algorithm": 0,
            "runtimes": [],
        },
        "invalidity": _INVALIDITY[evaluation.status],
        "correctness": 0 if evaluation.status is Status.PARITY_FAILED else 1,
        "measurements": _measurements(evaluation),
    }


def _measurements(evaluation: Evaluation) -> list[dict[str, Any]]:
    timing, resources = evaluation.timing, evaluation.resources
    measured: list[tuple[str, float, str]] = []
    if timing is not None:
        times = (("time", timing.median_us), ("time_low", timing.low_us), ("time_high", timing.high_us))
        measured += [(name, us / 1e3, "ms") for name, us in times]
    if resources is not None:
        measured.append(("registers", resources.registers, "registers per thread"))
        measured.append(("spills", resources.spill_bytes, "bytes per thread"))
        measured.append(("shared_memory", resources.smem_bytes, "bytes per block"))
    return [{"name": name, "value": value, "unit": unit} for name, value, unit in measured]
