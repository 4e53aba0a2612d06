#!/usr/bin/env python3
"""Takes the worst forecasts apart, with Nsight Compute's counters where there is a GPU.

    python scripts/measure/foresight_worst.py *.landscape.xz --state worst.json      # on the GPU
    python scripts/measure/foresight_worst.py *.landscape.xz --state worst.json --out docs/results/foresight-worst

The worst forecasts are those configs of the judged landscapes whose measured time differs most from the forecast, a few
of each problem. Beside each stands a *control*: of the configs of the same problem and family whose forecast is within
2 %, the one that takes about as long. For each config the time is predicted three times: from the config alone, with
the registers and spills of the machine code, and from the executed kernel. The steps between these predictions are the
parts of the error that come from registers and from counts; what is left belongs to the model. On a GPU, ``ncu`` counts
one call of each kernel, and the busy time of each unit is compared with the predicted one. The state file keeps what is
done, so that the same command goes on where it stopped; the page needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import common
from foresight import is_judged

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.device.tools.bottleneck import diagnose
from evoengine.device.tools.launcher import LaunchJob
from evoengine.device.tools.ncu import METRICS, find_ncu, profile_job
from evoengine.errors import CandidateError
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import WARP
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import median_us
from evoengine.model import Config, Evaluation, KernelCounters, Problem
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.search.forecast.choice import forecasts_for
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.system.files import write_file
from evoengine.target import Target

ACCURATE: Final = 0.02
"""Largest error of a control's forecast."""
UNITS: Final = ("tensor", "issue", "mufu", "shared", "l2")
"""Units whose busy time is both predicted and counted."""
SHOWN: Final = (
    *("BLOCK_N", "WARPS_M", "WARPS_N", "M_ATOMS", "CONSUMERS", "KEY_GROUPS", "STAGES", "STAGES_K", "STAGES_V"),
    *("SPLITS", "SPLIT_WAVES", "PACK_GQA", "PERSISTENT"),
)
_CYCLES: Final = ("sm__cycles_elapsed.max", "sm__cycles_active.avg", "sm__cycles_active.max")
_BUSY: Final = {
    "tensor": "sm__pipe_tensor_cycles_active.max",
    "issue": "smsp__inst_executed.max",
    "mufu": "smsp__inst_executed_pipe_xu.max",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.max",
    "l2": "lts__t_bytes.sum",
}
ASKED: Final = tuple(dict.fromkeys((*METRICS, *_CYCLES, *_BUSY.values(), "smsp__sass_inst_executed_op_local.sum")))


@dataclass(frozen=True)
class Case:
    """A measured config; times in microseconds."""

    problem: Problem
    target: Target
    config: Config
    measured_us: float
    forecast_us: float
    is_control: bool

    @property
    def key(self) -> str:
        return f"{self.problem.key} {self.config.key}"

    @property
    def error(self) -> float:
        """Logarithm of measured over forecast time."""
        return math.log(self.measured_us / self.forecast_us)


@dataclass(frozen=True)
class Parts:
    """Parts of the error of a forecast, as logarithms that add up to it."""

    registers: float
    """From estimated registers, spills and occupancy."""
    counts: float
    """From counts that follow from the config instead of an execution."""
    model: float
    """Rest of the error, of a model that has the right counts."""


def main() -> int:
    arguments = _arguments()
    cases = choose(arguments.landscapes, arguments.count, arguments.per_problem)
    state: dict[str, dict[str, Any]] = json.loads(arguments.state.read_text()) if arguments.state.is_file() else {}
    compiler, ncu = Compiler(usable_cache_dir()), find_ncu()
    for number, case in enumerate(cases, 1):
        entry = state.setdefault(case.key, {})
        if "executed_us" in entry and ("launches" in entry or ncu is None):
            continue
        try:
            kernel = _built(case, compiler)
            entry.update(_predicted(case, kernel))
            if ncu is not None:
                counted = profile_job(ncu, LaunchJob.of(kernel, make_inputs(case.problem, "normal", 0)), ASKED)
                entry["launches"] = [dict(launch.values) for launch in counted]
        except CandidateError as error:
            entry["failed"] = str(error)
        write_file(arguments.state, json.dumps(state, indent=1) + "\n")
        print(f"{number} of {len(cases)}: {case.key}", file=sys.stderr, flush=True)
    known = [case for case in cases if "executed_us" in state[case.key]]
    document = {"cases": [_record(case, state[case.key]) for case in known]}
    common.write_results(arguments.out, document, page(known, state))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    common.add_landscapes(parser)
    parser.add_argument("--count", type=int, default=20, help="Number of worst forecasts.")
    parser.add_argument("--per-problem", type=int, default=4, help="Most of them of one problem.")
    parser.add_argument("--state", type=Path, required=True, help="File that keeps what is done.")
    arguments: argparse.Namespace = parser.parse_args()
    return arguments


# --- the configs ------------------------------------------------------------------------------------------------------


def choose(landscapes: Sequence[Path], count: int, per_problem: int) -> list[Case]:
    """The worst forecasts of judged landscapes, each followed by its control if there is one."""
    files = [found for path in landscapes if (found := _cases(path))]
    worst = [case for cases in files for case in sorted(cases, key=_badness)[:per_problem]]
    chosen: list[Case] = []
    for case in sorted(worst, key=_badness)[:count]:
        others = next(cases for cases in files if cases[0].problem == case.problem)
        controls = [
            one
            for one in others
            if abs(one.error) <= ACCURATE and one.config.family == case.config.family and one not in chosen
        ]
        chosen.append(case)
        if controls:
            nearest = min(controls, key=lambda one: abs(math.log(one.measured_us / case.measured_us)))
            chosen.append(replace(nearest, is_control=True))
    return chosen


def _badness(case: Case) -> float:
    return -abs(case.error)


def _cases(path: Path) -> list[Case]:
    """All configs of a judged landscape that have a forecast; none of other landscapes."""
    landscape = read_landscape(path)
    problem, target = common.measured_on(landscape)
    if not is_judged(problem):
        return []
    forecasts = forecasts_for([find_space(family.name) for family in landscape.families], problem, target)
    by_family: dict[str, list[Evaluation]] = {}
    for one in landscape.evaluations:
        if one.ok and one.config.family in forecasts:
            by_family.setdefault(one.config.family, []).append(one)
    found = []
    for family, rows in by_family.items():
        predicted = forecasts[family].us_of([row.config for row in rows]).tolist()
        found += [
            Case(problem, target, row.config, median_us(row), us, False)
            for row, us in zip(rows, predicted, strict=True)
            if math.isfinite(us)
        ]
    return found


# --- predictions ------------------------------------------------------------------------------------------------------


def _built(case: Case, compiler: Compiler) -> Kernel:
    """Compiles a config for the GPU that it was measured on.

    Raises:
        CandidateError: It does not compile.
    """
    space = find_space(case.config.family)
    template = TemplateLibrary(data_dir("templates")).load(case.config.family)
    source = template.render(space.updated(case.config), case.problem, space, case.target)
    return Kernel(source, compiler.compile(source, case.target.arch))


def _predicted(case: Case, kernel: Kernel) -> dict[str, Any]:
    """Predictions with the registers of the machine code, and from the executed kernel with its terms."""
    forecast = AnalyticForecast(find_space(case.config.family), case.problem, case.target)
    resources = kernel.binary.resources
    executed = EmulatorDevice(case.target, case.target.arch).load(kernel).predict(case.problem)
    return {
        "registers": resources.registers,
        "spill_bytes": resources.spill_bytes,
        "with_registers_us": float(forecast.us_of([case.config], [resources])[0]),
        "executed_us": executed.us,
        "terms": executed.terms,
    }


def parts(case: Case, entry: Mapping[str, Any]) -> Parts:
    return Parts(
        registers=math.log(entry["with_registers_us"] / case.forecast_us),
        counts=math.log(entry["executed_us"] / entry["with_registers_us"]),
        model=math.log(case.measured_us / entry["executed_us"]),
    )


# --- counters ---------------------------------------------------------------------------------------------------------


def busy_us(entry: Mapping[str, Any], target: Target) -> dict[str, float]:
    """Counted busy time of each unit of the busiest SM at the clock of the predictions, all launches together."""
    per_clock = {
        "tensor": float(target.schedulers_per_sm),  # clocks of each of the tensor cores
        "issue": 1.0,
        "mufu": target.mufu_per_clk_per_sm / target.schedulers_per_sm / WARP,
        "shared": 1.0,
        "l2": float(target.l2_bytes_per_clk),
    }
    return {
        unit: sum(launch[metric] for launch in entry["launches"]) / per_clock[unit] / target.clock_mhz
        for unit, metric in _BUSY.items()
        if all(metric in launch for launch in entry["launches"])
    }


def predicted_busy_us(entry: Mapping[str, Any]) -> dict[str, float]:
    """The same as the prediction of the executed kernel has it."""
    return {unit: entry["terms"][unit] for unit in UNITS if unit in entry["terms"]}


def elapsed_us(entry: Mapping[str, Any], target: Target) -> float:
    """Time from the first to the last instruction, of all launches."""
    return float(sum(launch["sm__cycles_elapsed.max"] for launch in entry["launches"])) / target.clock_mhz


def balance(entry: Mapping[str, Any]) -> float:
    """Mean over largest number of clocks for which an SM has CTAs, of the main launch."""
    main = entry["launches"][0]
    return float(main["sm__cycles_active.avg"] / main["sm__cycles_active.max"])


def waits(entry: Mapping[str, Any]) -> str:
    """The two longest waits of the warps of the main launch."""
    found = diagnose(KernelCounters("", entry["launches"][0], {})).waits
    return ", ".join(f"{cause} {share:.0%}" for cause, share in [*found.items()][:2])


# --- the page ---------------------------------------------------------------------------------------------------------


def _record(case: Case, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "problem": case.problem.key,
        "config": case.config.key,
        "control": case.is_control,
        "measured_us": case.measured_us,
        "forecast_us": case.forecast_us,
        **entry,
    }


def page(cases: Sequence[Case], state: Mapping[str, dict[str, Any]]) -> str:
    """The report as Markdown."""
    command = " ".join(["scripts/measure/foresight_worst.py", *common.without_folders(sys.argv[1:])])
    lines = ["# The worst forecasts", "", f"    {command}", "", *_error_table(cases, state)]
    counted = [case for case in cases if "launches" in state[case.key]]
    if counted:
        lines += ["", *_unit_table(counted, state), "", *_wait_table(counted, state)]
    return "\n".join(lines)


def _error_table(cases: Sequence[Case], state: Mapping[str, dict[str, Any]]) -> list[str]:
    rows = [
        "| number | problem | config | measured, µs | measured / forecast | registers | counts | model |",
        "|--:|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for number, case in _numbered(cases):
        part = parts(case, state[case.key])
        cells = [f"{math.exp(one):.2f}" for one in (case.error, part.registers, part.counts, part.model)]
        rows.append(
            f"| {number} | {case.problem.key} | {_short(case.config)} | {case.measured_us:.2f} | {' | '.join(cells)} |"
        )
    return rows


def _unit_table(cases: Sequence[Case], state: Mapping[str, dict[str, Any]]) -> list[str]:
    """Counted over predicted busy time of each unit, medians of groups of kernels."""
    groups = {
        "slower than forecast": [case for case in cases if not case.is_control and case.error > 0],
        "faster": [case for case in cases if not case.is_control and case.error <= 0],
        "controls": [case for case in cases if case.is_control],
    }
    rows = [f"| kernels | number | {' | '.join(UNITS)} |", f"|:--|--:|{'--:|' * len(UNITS)}"]
    for name, group in groups.items():
        cells = []
        for unit in UNITS:
            ratios = [ratio for case in group if (ratio := _ratio(case, state[case.key], unit)) is not None]
            cells.append(f"{median(ratios):.2f}" if ratios else "–")
        rows.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return rows


def _ratio(case: Case, entry: Mapping[str, Any], unit: str) -> float | None:
    counted, predicted = busy_us(entry, case.target).get(unit), predicted_busy_us(entry).get(unit)
    return counted / predicted if counted and predicted else None


def _wait_table(cases: Sequence[Case], state: Mapping[str, dict[str, Any]]) -> list[str]:
    heading = " | ".join(f"{unit}, µs" for unit in UNITS)
    rows = [
        f"| number | elapsed, µs | {heading} | balance | spills | waits for |",
        f"|--:|--:|{'--:|' * len(UNITS)}--:|--:|:--|",
    ]
    for number, case in _numbered(cases):
        entry = state[case.key]
        counted, predicted = busy_us(entry, case.target), predicted_busy_us(entry)
        cells = [f"{counted.get(unit, 0):.2f} ({predicted.get(unit, 0):.2f})" for unit in UNITS]
        rows.append(
            f"| {number} | {elapsed_us(entry, case.target):.2f} | {' | '.join(cells)} | {balance(entry):.2f} "
            f"| {entry['spill_bytes']} | {waits(entry)} |"
        )
    return rows


def _numbered(cases: Sequence[Case]) -> Iterator[tuple[str, Case]]:
    """Cases with their numbers; a control has the number of the case before it and a ``c``."""
    number = 0
    for case in cases:
        number += not case.is_control
        yield f"{number}{'c' * case.is_control}", case


def _short(config: Config) -> str:
    """Family of a config, and the tunables that determine most of its time."""
    values = config.as_dict()
    kept = [f"{name}={values[name]:d}" for name in SHOWN if values.get(name)]
    order = values.get("TILE_ORDER", "natural")
    return " ".join([f"`{config.family}`", *kept, *([] if order == "natural" else [str(order)])])


if __name__ == "__main__":
    common.run(main)
