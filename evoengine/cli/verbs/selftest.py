"""``selftest``: runs known-wrong and honest kernels through the gate, and says which it killed and which it refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from evoengine import __version__
from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.verbs.selftest_record import SelftestRecord
from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.workers.pool import Care, WorkerPool
from evoengine.engine.devices import DeviceChoice, choose_device
from evoengine.engine.options import SearchOptions
from evoengine.engine.worker_pools import describe_device
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DeviceInfo
from evoengine.parity.mutants import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.candidate.deadlines import COMPILE_LIMIT_S, DEVICE_CHECK_LIMIT_S
from evoengine.search.selftest.self_comparison import Score, score
from evoengine.search.selftest.selftest import (
    SelftestResult,
    SelftestTrial,
    SelftestVerdict,
    TrialBuilder,
    TrialJudge,
    control_trials,
    mutant_trials,
    run_trials,
    runnable,
    setup_trials,
)
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import family_names
from evoengine.target import Target

_JUDGE_LIMIT_S: Final = 600.0
"""The second net: a launch has a deadline of its own."""
_REASON_WIDTH: Final = 110
_DIGITS: Final = 16
_EMULATOR_MODULES: Final = ("evoengine.costmodel.device", "torch")
_GPU_MODULES: Final = ("evoengine.device.cuda.device", "cupy", "torch")
"""What judges import late; torch, because each computes the truths of its cases."""


@dataclass(frozen=True)
class SelftestRequest:
    """What a user asks to be tried."""

    device: str
    honest: int
    """Random configs, besides what the mutants are made from."""
    seed: int
    mutants: str | None
    """Comma-separated names; None for all."""
    resume: Path | None = None
    """Where outcomes are kept; those that it holds are not tried again."""


def run_selftest(request: SelftestRequest, *, json_output: bool) -> bool:
    """Tries the gate.

    Returns:
        Whether it killed every mutant that this device can see, and passed every honest candidate.

    Raises:
        UsageError: there is no such mutant or device.
        EvoEngineError: it could not run.
    """
    named = _chosen(request.mutants)
    choice = choose_device(SearchOptions(SETUPS["plain"].problem, device=request.device))
    device, gpu = describe_device(choice)
    target = gpu.compiled_for(device.arch)
    mutants = runnable(named, family_names(), device.arch)
    if request.mutants is not None and len(mutants) < len(named):
        lost = next(mutant.name for mutant in named if mutant not in mutants)
        raise UsageError(f"mutant '{lost}': its family does not support {device.arch}; leave it out")
    trials = [
        *setup_trials(mutants, request.seed),
        *mutant_trials(mutants, request.seed),
        *control_trials(family_names(), target, request.honest, request.seed),
    ]
    notes = make_console(stderr=True)
    with SelftestRecord(request.resume, _about(device)) as record:
        known = [record.outcome_of(trial) for trial in trials]
        left = [trial for trial, outcome in zip(trials, known, strict=True) if outcome is None]
        fresh = iter(_run(left, choice, device, target, notes, record) if left else ())
    outcomes = [outcome or next(fresh) for outcome in known]
    result = score(mutants, outcomes, predicted=device.predicted)
    if json_output:
        print_json(_document(result, device, request))
    else:
        _print(make_console(), result, device)
    return result.passed


def _about(device: DeviceInfo) -> dict[str, str]:
    """On what outcomes depend besides their trials."""
    library = TemplateLibrary(data_dir("templates"))
    hashes = "".join(library.load(family).template_hash for family in family_names())
    templates = hashlib.sha256(hashes.encode()).hexdigest()[:_DIGITS]
    return {"device": device.name, "arch": device.arch, "templates": templates, "evoengine": __version__}


def _chosen(names: str | None) -> tuple[Mutant, ...]:
    if names is None:
        return MUTANTS
    wanted = {name.strip() for name in names.split(",")}
    unknown = sorted(wanted - {mutant.name for mutant in MUTANTS})
    if unknown:
        raise UsageError(f"unknown mutant '{unknown[0]}': the table of 'selftest' lists all names")
    return tuple(mutant for mutant in MUTANTS if mutant.name in wanted)


def _run(
    trials: Sequence[SelftestTrial],
    choice: DeviceChoice,
    device: DeviceInfo,
    target: Target,
    notes: Console,
    record: SelftestRecord,
) -> list[SelftestResult]:
    """Compile workers and device workers as in a search: a mutant may kill the one that it is in."""
    cores, cache = len(os.sched_getaffinity(0)), default_cache_dir()
    builder = partial(TrialBuilder, target, device.arch, cache)
    judge, places = partial(TrialJudge, choice.spec, build_known_good(device.arch, cache)), choice.places
    compilers = max(1, cores // 2) if device.predicted else cores
    modules = _EMULATOR_MODULES if device.predicted else _GPU_MODULES
    care = Care() if device.predicted else Care(spares=1, check_timeout_s=DEVICE_CHECK_LIMIT_S)
    outcomes = []
    with (
        WorkerPool(builder, compilers, COMPILE_LIMIT_S, name="compile worker") as builders,
        WorkerPool(
            judge, len(places), _JUDGE_LIMIT_S, name="device worker", preload=modules, care=care, places=places
        ) as pool,
        notes.status("", spinner="line") as status,
    ):
        for outcome in run_trials(trials, builders, pool):
            outcomes.append(outcome)
            record.add(outcome)
            status.update(f"{len(outcomes)} of {len(trials)} kernels: {outcome.trial.name}")
    return outcomes


def _print(console: Console, result: Score, device: DeviceInfo) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("mutant", no_wrap=True)
    table.add_column("breaks", no_wrap=True)
    table.add_column("killed by", overflow="fold")
    for mutant, outcome in result.mutants:
        table.add_row(mutant.name, mutant.breaks, _fate(result, mutant, outcome))
    print_table(console, table)
    console.print()
    for outcome in result.rejected:
        console.print(f"rejected  {outcome.trial.name}, {outcome.trial.config}: {outcome.reason}", markup=False)
    for line in _summary(result, device):
        console.print(line, markup=False)


def _fate(result: Score, mutant: Mutant, outcome: SelftestResult) -> str:
    if outcome.verdict is SelftestVerdict.REJECTED:
        reason = outcome.reason if len(outcome.reason) < _REASON_WIDTH else f"{outcome.reason[:_REASON_WIDTH]}…"
        return f"{outcome.status.value}: {reason}"
    if outcome.verdict is SelftestVerdict.DEFECT:
        return f"DEFECT, nothing shown: {outcome.reason}"
    return "not seen by this device" if mutant in result.unseen else "SURVIVED"


def _summary(result: Score, device: DeviceInfo) -> list[str]:
    killed, survivors = len(result.killed), result.survivors
    lines = [f"device            {device.name}, {device.kind}, compiled for {device.arch}"]
    rate = result.kill_rate
    if rate is not None:
        lines.append(f"kill rate         {killed} of {killed + len(survivors)} mutants, {100 * rate:.1f} %")
    if result.unseen:
        seen = sum(mutant.hazard for mutant in result.killed)
        lines.append(
            f"hazards           {seen} killed and counted above; {len(result.unseen)} not seen by this device and not "
            f"counted, because it may run them to the right numbers: {_names(result.unseen)}"
        )
    if survivors:
        lines.append(f"survivors         {_names(survivors)}")
    if result.defects:
        lines.append(f"defects           {len(result.defects)} mutants could not be made: {_names(result.defects)}")
    share = result.false_rejection_rate
    if share is not None:
        lines.append(
            f"false rejections  {len(result.rejected)} of {len(result.controls)} honest configs, {100 * share:.1f} %"
        )
    return lines


def _names(mutants: Sequence[Mutant]) -> str:
    return ", ".join(mutant.name for mutant in mutants)


def _document(result: Score, device: DeviceInfo, request: SelftestRequest) -> dict[str, Any]:
    return {
        "device": device.name,
        "device_kind": device.kind,
        "arch": device.arch,
        "seed": request.seed,
        "passed": result.passed,
        "kill_rate": result.kill_rate,
        "false_rejection_rate": result.false_rejection_rate,
        "honest": len(result.controls),
        "rejected": [
            {"name": outcome.trial.name, "config": str(outcome.trial.config), "reason": outcome.reason}
            for outcome in result.rejected
        ],
        "mutants": [
            {
                "name": mutant.name,
                "breaks": mutant.breaks,
                "setup": mutant.setup,
                "hazard": mutant.hazard,
                "fate": _word(result, mutant),
                "status": outcome.status.value,
                "reason": outcome.reason,
            }
            for mutant, outcome in result.mutants
        ],
    }


def _word(result: Score, mutant: Mutant) -> str:
    words = {"killed": result.killed, "survived": result.survivors, "not seen": result.unseen}
    return next((word for word, group in words.items() if mutant in group), "defect")
