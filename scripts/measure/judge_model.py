#!/usr/bin/env python3
"""Compares the latency model's predictions with measured landscapes: rank correlation and error. Needs no GPU.

    python scripts/measure/judge_model.py default.landscape.xz long.landscape.xz --out docs/results/latency-model
    python scripts/measure/judge_model.py *.landscape.xz --fit default.landscape.xz

A fixed random sample of each landscape's correct configs is compiled for its GPU's architecture, executed by the
emulator and predicted with that GPU's data sheet. Three simpler rankings of the same configs are compared too: the
config alone (no compilation, no execution), the roofline of the executed work, and the occupancy. The ranking by config
alone is also evaluated on the whole landscape. ``--shortlist`` evaluates the model on the configs that the config alone
ranks first; a search combines the two in this way.

Families of warpgroups are simulated, from their machine code and one executed piece of work; their landscapes have no
roofline. ``--fit-simulation`` fits the constants of the simulation on samples of some landscapes and prints them.

``--fit`` first fits the model's constants on the sample of one landscape and prints them; without it, the package's
constants are used. The page marks the landscape of the fit. Compiled kernels and counters are stored in ``--cache``;
remove it after a change of the emulator's counters. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process, one core

import common
import numpy as np
from scipy.optimize import least_squares

from evoengine.costmodel.device import CountedStep, EmulatorDevice
from evoengine.costmodel.family_counts import KernelFacts
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.latency import FITTED, Constants, demand, estimate
from evoengine.costmodel.simulated_kernel import SimulatedKernel, covers, estimate_kernel
from evoengine.costmodel.simulation.warpgroup import SIMULATION_FITTED, SimulationConstants
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.dependency_analysis import Structure
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import occupancy
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Evaluation, Problem, Resources
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.statistics import rank_correlation
from evoengine.target import Target

TOP: Final = 20
FITTED_ON: Final = "1x8x512x64-fp16"
"""Problem of the H200 landscape on which the package's constants were fitted."""
UNSEEN: Final = ("exchange", "merge_wait")
"""Constants that are not fitted: the recorded subspaces have no split-K configs."""
SIMULATION_FITTED_ON: Final = (
    "1x8x1024x64-fp16",
    "2x12x384x64-fp16",
    "4x16x2048x64-fp16",
    "1x32x1024x128-kv8-bf16-causal",
    "1x24x4096x128-bf16",
)
"""Problems of the H200 samples on which the constants of the simulation were fitted."""
SIMULATION_CONSTANTS: Final = (
    "maxima_latency",
    "product_latency",
    "sync",
    "copy_latency",
    "start",
    "tile_instructions",
    "end_latency",
    "l2_share",
    "issue",
)
"""Fitted constants that the families share; those of copies by threads were fitted afterwards, on ``wgmma`` alone."""
MODEL, CONFIG, ROOFLINE, OCCUPANCY = "latency model", "config alone", "roofline", "occupancy"


@dataclass(frozen=True)
class Sample:
    """One sampled config: its measured time, and the emulator's counts or the input of the simulation."""

    config: Config
    measured_us: float
    resources: Resources
    steps: tuple[CountedStep, ...] = ()
    simulated: SimulatedKernel | None = None


@dataclass(frozen=True)
class Judgement:
    """Quality of one ranking on one set of configs."""

    ranking: str
    configs: int
    spearman: float
    top: float
    """Best measured time among the first TOP of the ranking, over the best of the set."""
    top_of_all: float
    """The same over the best of the whole landscape."""
    error: float | None
    """Median of |predicted / measured - 1|; None for a ranking that predicts no time."""
    bias: float | None
    """Median of predicted / measured."""


def main() -> int:
    arguments = _arguments()
    constants, fitted_on = FITTED, FITTED_ON
    if arguments.fit is not None:
        landscape = read_landscape(arguments.fit)
        problem, target = common.measured_on(landscape)
        constants, fitted_on = fit(_sample(landscape, arguments), target), problem.key
        print(f"fitted on {fitted_on}: {constants}", file=sys.stderr)
    if arguments.fit_simulation:
        print(f"fitted: {fit_simulation(arguments.fit_simulation, arguments)}", file=sys.stderr)
    parts = [_judged(name, constants, fitted_on, arguments) for name in arguments.landscapes]
    simulated = all(part["simulated"] for part in parts)
    report = {
        "command": _command(arguments.cache),
        "sample": arguments.sample,
        "seed": arguments.seed,
        "constants": asdict(SIMULATION_FITTED if simulated else constants),
        "fitted_on": ", ".join(SIMULATION_FITTED_ON) if simulated else fitted_on,
        "landscapes": parts,
    }
    common.write_results(arguments.out, report, page(report))
    return 0


def _command(cache: Path) -> str:
    """The command line without folders of this machine and the cache."""
    words = common.without_folders(sys.argv[1:])
    kept = [word for word in words if str(cache) not in word and word != "--cache"]
    return " ".join(["scripts/measure/judge_model.py", *kept])


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    common.add_landscapes(parser)
    parser.add_argument("--fit", type=Path, help="Landscape to fit the constants on.")
    parser.add_argument(
        "--fit-simulation", nargs="+", type=Path, help="Landscapes to fit the constants of the simulation on."
    )
    parser.add_argument("--sample", type=int, default=400, help="Configs of each landscape to execute.")
    parser.add_argument(
        "--shortlist", type=int, default=0, help="Further configs to execute: the best by config alone."
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument(
        "--cache", type=Path, default=default_cache_dir() / "judge-model", help="Folder of kernels and counters."
    )
    parser.add_argument("--residuals", action="store_true", help="Print the median error by value of each tunable.")
    return parser.parse_args()


# --- samples ----------------------------------------------------------------------------------------------------------


def _sample(
    landscape: Landscape, arguments: argparse.Namespace, drawn: Sequence[Evaluation] | None = None
) -> list[Sample]:
    """The sample, or the configs `drawn`, executed by the emulator or loaded from the cache."""
    problem, target = common.measured_on(landscape)
    spaces = tuple(find_space(family.name) for family in landscape.families)
    builder, found = common.builder(problem, target, spaces, arguments.cache / "kernels"), []
    drawn = _drawn(landscape, arguments.sample, arguments.seed) if drawn is None else drawn
    for number, evaluation in enumerate(drawn, 1):
        file = arguments.cache / f"{landscape.key}-{evaluation.config.key}.json"
        if not file.exists():
            kernel = builder.build(_complete(evaluation.config, spaces)).kernel
            if kernel is None:
                raise UsageError(f"{evaluation.config} was recorded but does not compile with this version")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(_packed(kernel, problem, target)))
            if number % 50 == 0:
                print(f"{problem.key}: {number} of {len(drawn)}", file=sys.stderr)
        found.append(_unpacked(evaluation, problem, json.loads(file.read_text())))
    return found


def _complete(config: Config, spaces: Sequence[SearchSpace]) -> Config:
    """A recorded config as the space has it now."""
    return next(space for space in spaces if space.family == config.family).updated(config)


def _drawn(landscape: Landscape, count: int, seed: int) -> list[Evaluation]:
    correct = [evaluation for evaluation in landscape.evaluations if evaluation.ok]
    order = np.random.default_rng(seed).permutation(len(correct))[:count]
    return [correct[place] for place in order]


def _packed(kernel: Kernel, problem: Problem, target: Target) -> dict[str, Any]:
    loaded = EmulatorDevice(target).load(kernel)
    packed: dict[str, Any] = {"resources": asdict(kernel.binary.resources)}
    if covers(kernel, problem):
        simulated = loaded.simulation_input(problem)
        return packed | {"names": dict(simulated.names), "facts": asdict(simulated.facts)}
    return packed | {"steps": [_packed_step(step) for step in loaded.counted_steps(problem)]}


def _unpacked(evaluation: Evaluation, problem: Problem, packed: dict[str, Any]) -> Sample:
    known = Sample(evaluation.config, median_us(evaluation), Resources(**packed["resources"]))
    if "facts" in packed:
        return replace(known, simulated=SimulatedKernel(problem, packed["names"], KernelFacts(**packed["facts"])))
    return replace(known, steps=tuple(_unpacked_step(step) for step in packed["steps"]))


def _packed_step(step: CountedStep) -> dict[str, Any]:
    report = {item.name: getattr(step.report, item.name) for item in fields(LaunchReport)}
    report |= {"pipes": {pipe.value: count for pipe, count in step.report.pipes.items()}}
    report |= {"structure": asdict(step.report.structure), "instructions_by_line": {}, "sites": []}
    return {"report": report, "resources": asdict(step.resources), "unique_bytes": step.unique_bytes}


def _unpacked_step(step: dict[str, Any]) -> CountedStep:
    counts = dict(step["report"])
    counts["pipes"] = {Pipe(name): count for name, count in counts["pipes"].items()}
    counts["structure"] = Structure(**counts["structure"])
    return CountedStep(LaunchReport(**counts), Resources(**step["resources"]), step["unique_bytes"])


# --- rankings ---------------------------------------------------------------------------------------------------------


def predicted_us(known: Sample, target: Target, constants: Constants) -> float:
    """Predicted time of all steps."""
    if known.simulated is not None:
        return estimate_kernel(known.config.family, known.simulated, occupancy(known.resources, target), target).us
    total_us = 0.0
    for step in known.steps:
        occupied = occupancy(step.resources, target)
        asked = demand(step.report, step.resources, target, constants)
        total_us += estimate(asked, occupied, target, unique_bytes=step.unique_bytes, constants=constants).us
    return total_us


def roofline_us(known: Sample, target: Target) -> float:
    """Roofline time: the maximum of tensor work at its peak rate and of traffic at the L2 and DRAM bandwidths."""
    clock = target.clock_mhz
    return sum(
        max(
            step.report.tensor_flops / (target.mma_flops_per_clk_per_sm * target.sms * clock),
            step.report.global_bytes / (target.l2_bytes_per_clk * clock),
            step.unique_bytes / (target.dram_gbps * 1e3),
        )
        for step in known.steps
    )


def resident_share(known: Sample, target: Target) -> float:
    """Occupancy of the main launch, 0 to 1."""
    return occupancy(known.resources, target).fraction


def fit(sample: Sequence[Sample], target: Target) -> Constants:
    """Constants of least squared logarithmic error; the search starts at the package's constants."""
    names = [item.name for item in fields(Constants) if item.name not in UNSEEN]
    begin = np.array([getattr(FITTED, name) for name in names])
    measured = np.array([known.measured_us for known in sample])

    def errors(values: np.ndarray) -> np.ndarray:
        constants = Constants(**dict(zip(names, values.tolist(), strict=True)))
        found: np.ndarray = np.log(np.array([predicted_us(known, target, constants) for known in sample]) / measured)
        return found

    low = np.where(np.array(names) == "norm", 1.0, 0.0)
    found = least_squares(errors, begin, bounds=(low, np.inf), x_scale=begin, loss="soft_l1", f_scale=0.1).x
    return Constants(**{name: float(f"{value:.3g}") for name, value in zip(names, found.tolist(), strict=True)})


def fit_simulation(files: Sequence[Path], arguments: argparse.Namespace) -> SimulationConstants:
    """Constants of the simulation of least squared logarithmic error; each landscape has the same weight."""
    start = {name: getattr(SIMULATION_FITTED, name) for name in SIMULATION_CONSTANTS}
    landscapes = [read_landscape(file) for file in files]
    samples = [(_sample(landscape, arguments), common.measured_on(landscape)[1]) for landscape in landscapes]

    def constants(logarithms: np.ndarray) -> SimulationConstants:
        factors = zip(start.items(), np.exp(logarithms).tolist(), strict=True)
        return replace(SIMULATION_FITTED, **{name: begin * factor for (name, begin), factor in factors})

    def errors(logarithms: np.ndarray) -> np.ndarray:
        tried, found = constants(logarithms), []
        for sample, target in samples:
            for known in sample:
                assert known.simulated is not None
                resident = occupancy(known.resources, target)
                us = estimate_kernel(known.config.family, known.simulated, resident, target, tried).us
                found.append(math.log(us / known.measured_us) / math.sqrt(len(sample)))
        return np.array(found)

    begin = np.zeros(len(start))
    fitted = least_squares(errors, begin, loss="soft_l1", f_scale=0.1, bounds=(-2.5, 2.5), max_nfev=30)
    found = asdict(constants(fitted.x))
    return SimulationConstants(**{name: float(f"{value:.3g}") for name, value in found.items()})


# --- judging ----------------------------------------------------------------------------------------------------------


def _judged(path: Path, constants: Constants, fitted_on: str, arguments: argparse.Namespace) -> dict[str, Any]:
    landscape = read_landscape(path)
    problem, target = common.measured_on(landscape)
    sample, best_us = _sample(landscape, arguments), median_us(landscape.best)
    measured = [known.measured_us for known in sample]
    model = [predicted_us(known, target, constants) for known in sample]
    if arguments.residuals:
        _print_residuals(sample, np.log(np.array(model) / measured))
    simulated = all(known.simulated is not None for known in sample)
    rooflines = [] if simulated else [[roofline_us(known, target) for known in sample]]
    judgements = [
        judge(MODEL, model, measured, best_us),
        *(judge(ROOFLINE, each, measured, best_us) for each in rooflines),
        judge(OCCUPANCY, [-resident_share(known, target) for known in sample], measured, best_us, times=False),
    ]
    alone = _config_alone(problem, target, constants)
    if all(AnalyticForecast.covers(find_space(family.name), problem) for family in landscape.families):
        judgements.insert(1, judge(CONFIG, [alone(known.config) for known in sample], measured, best_us))
        every = [one for one in landscape.evaluations if one.ok]
        expected, times = [alone(one.config) for one in every], [median_us(one) for one in every]
        judgements.append(judge(f"{CONFIG}, all configs", expected, times, best_us))
        short = [every[place] for place in np.argsort(expected, kind="stable")[: arguments.shortlist]]
        if short:
            listed = _sample(landscape, arguments, short)
            model = [predicted_us(known, target, constants) for known in listed]
            name = f"{MODEL}, of the {len(short)} best by {CONFIG}"
            judgements.append(judge(name, model, [known.measured_us for known in listed], best_us))
    return {
        "file": path.name,
        "key": landscape.key,
        "problem": problem.key,
        "device": landscape.device.name,
        "families": ", ".join(family.name for family in landscape.families),
        "fitted": problem.key in SIMULATION_FITTED_ON if simulated else problem.key == fitted_on,
        "simulated": simulated,
        "configs": len(landscape.evaluations),
        "optimum_us": best_us,
        "judgements": [asdict(judgement) for judgement in judgements],
    }


def _config_alone(problem: Problem, target: Target, constants: Constants) -> Callable[[Config], float]:
    prospects: dict[str, AnalyticForecast] = {}

    def us(config: Config) -> float:
        if config.family not in prospects:
            prospects[config.family] = AnalyticForecast(find_space(config.family), problem, target, constants)
        return prospects[config.family].us(config)

    return us


def judge(
    ranking: str, scores: Sequence[float], measured: Sequence[float], best_us: float, *, times: bool = True
) -> Judgement:
    """Compares scores (lower is better) with measured times; ties keep the order of the sample."""
    ranks, us = np.asarray(scores), np.asarray(measured)
    best_of_top = us[np.argsort(ranks, kind="stable")[:TOP]].min()
    share = ranks / us if times else None
    spearman = rank_correlation(ranks, us) or 0.0
    return Judgement(
        ranking=ranking,
        configs=len(us),
        spearman=round(spearman, 4),
        top=round(float(best_of_top / us.min()), 4),
        top_of_all=round(float(best_of_top / best_us), 4),
        error=None if share is None else round(float(np.median(np.abs(share - 1))), 4),
        bias=None if share is None else round(float(np.median(share)), 4),
    )


def _print_residuals(sample: Sequence[Sample], errors: np.ndarray) -> None:
    for name, _ in sample[0].config.values:
        values = np.array([str(dict(known.config.values).get(name)) for known in sample])
        medians = {value: float(np.median(errors[values == value])) for value in np.unique(values).tolist()}
        if len(medians) > 1:
            print(f"{name}: " + ", ".join(f"{value} {median:+.1%}" for value, median in medians.items()))


# --- the page ---------------------------------------------------------------------------------------------------------


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    constants = ", ".join(f"{name} {value:g}" for name, value in report["constants"].items())
    lines = [
        "# The latency model against measurements",
        "",
        f"    {report['command']}",
        "",
        f"A random sample of {report['sample']} configs of each landscape (seed {report['seed']}) was compiled,",
        "executed by the emulator and predicted, without a GPU. *Top 20* is the best measured time among the first 20",
        "configs of a ranking, over the best of the same configs, and over the best of the whole",
        "landscape. *Error* is the median of |predicted / measured - 1|, *bias* the median of predicted / measured.",
        "",
        f"The constants ({constants}) were fitted on {report['fitted_on']} alone.",
    ]
    for part in report["landscapes"]:
        lines += ["", *_section(part)]
    return "\n".join(lines)


def _section(part: dict[str, Any]) -> list[str]:
    role = "used for the fit of the constants" if part["fitted"] else "not used for the fit"
    return [
        f"## {part['problem']}, {part['families']}, on {part['device']}: {role}",
        "",
        f"{part['configs']:,} measured configs, the best {part['optimum_us']:.2f} µs ({part['file']}, {part['key']}).",
        "",
        "| ranking | configs | Spearman | top 20 | top 20, of all | error | bias |",
        "|:--|--:|--:|--:|--:|--:|--:|",
        *(_row(judgement) for judgement in part["judgements"]),
    ]


def _row(one: dict[str, Any]) -> str:
    error = "–" if one["error"] is None else f"{one['error']:.1%}"
    bias = "–" if one["bias"] is None else f"{one['bias']:.2f}"
    return (
        f"| {one['ranking']} | {one['configs']:,} | {one['spearman']:.3f} | {one['top']:.3f} "
        f"| {one['top_of_all']:.3f} | {error} | {bias} |"
    )


if __name__ == "__main__":
    common.run(main)
