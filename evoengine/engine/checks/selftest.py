"""Runs known-wrong and random valid kernels through the parity gate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from evoengine import __version__
from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.workers.pool import Care, WorkerPool
from evoengine.engine.checks.selftest_record import SelftestRecord
from evoengine.engine.devices.choice import DeviceChoice, choose_device
from evoengine.engine.devices.facts import describe_device
from evoengine.engine.families import wanted_spaces
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.options.verbs import SelftestOptions
from evoengine.engine.workers.modules import COMPILE_WORKER_NAME, DEVICE_WORKER_NAME
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DeviceInfo
from evoengine.parity.mutants import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.candidate.deadlines import COMPILE_LIMIT_S, DEVICE_CHECK_LIMIT_S
from evoengine.search.selftest.score import Score, score
from evoengine.search.selftest.selftest import (
    SelftestResult,
    SelftestTrial,
    TrialBuilder,
    TrialJudge,
    control_trials,
    mutant_trials,
    run_trials,
    runnable,
    setup_trials,
)
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import family_names
from evoengine.target import Target

_JUDGE_LIMIT_S: Final = 600.0
"""Limit of one trial; a launch has a shorter deadline of its own."""
_DIGITS: Final = 16
_EMULATOR_MODULES: Final = ("evoengine.costmodel.device", "torch")
_GPU_MODULES: Final = ("evoengine.device.cuda.device", "cupy", "torch")
"""Modules that device workers import before the first trial; torch computes the reference outputs."""

Progress = Callable[[str], object]
"""Receives a line after each trial."""


def selftest(options: SelftestOptions, progress: Progress) -> tuple[Score, DeviceInfo]:
    """Tests the parity gate.

    Args:
        options: Options of the self-test.
        progress: Callback that receives a line after each trial.

    Returns:
        Which mutants were rejected and which valid configs passed, and the device.

    Raises:
        UsageError: A family, a mutant or the device is unknown.
        EvoEngineError: The device cannot be used.
    """
    families = tuple(space.family for space in wanted_spaces(options.family, None))
    named = _chosen(options.mutants)
    choice = choose_device(SearchOptions(SETUPS["plain"].problem, device=options.device, target=options.target))
    device, gpu = describe_device(choice)
    target = gpu.compiled_for(device.arch)
    mutants = runnable(named, families, device.arch)
    if options.mutants is not None and len(mutants) < len(named):
        missing = next(mutant.name for mutant in named if mutant not in mutants)
        raise UsageError(
            f"mutant '{missing}' does not run: its family is not in --family {options.family}, or does not support "
            f"{device.arch}; leave it out"
        )
    trials = [
        *setup_trials(mutants, options.seed),
        *mutant_trials(mutants, options.seed),
        *control_trials(families, target, options.valid, options.seed),
    ]
    if not trials:
        raise UsageError(
            f"nothing to test: --family {options.family} has no kernel for {device.arch}; name another GPU to compile "
            "for with --target"
        )
    with SelftestRecord(options.resume, _about(device)) as record:
        known = [record.outcome_of(trial) for trial in trials]
        left = [trial for trial, outcome in zip(trials, known, strict=True) if outcome is None]
        fresh = iter(_run(left, choice, device, target, record, progress) if left else ())
    outcomes = [outcome or next(fresh) for outcome in known]
    return score(mutants, outcomes, predicted=device.predicted), device


def _about(device: DeviceInfo) -> dict[str, str]:
    """Facts that all outcomes depend on besides their trials."""
    library = TemplateLibrary(*data_dirs("templates"))
    hashes = "".join(library.load(family).template_hash for family in family_names())
    templates = hashlib.sha256(hashes.encode()).hexdigest()[:_DIGITS]
    return {"device": device.name, "arch": device.arch, "templates": templates, "evoengine": __version__}


def _chosen(names: str | None) -> tuple[Mutant, ...]:
    if names is None:
        return MUTANTS
    wanted = {name.strip() for name in names.split(",")}
    unknown = sorted(wanted - {mutant.name for mutant in MUTANTS})
    if unknown:
        raise UsageError(f"unknown mutant '{unknown[0]}': 'selftest' without --mutants lists all names")
    return tuple(mutant for mutant in MUTANTS if mutant.name in wanted)


def _run(
    trials: Sequence[SelftestTrial],
    choice: DeviceChoice,
    device: DeviceInfo,
    target: Target,
    record: SelftestRecord,
    progress: Progress,
) -> list[SelftestResult]:
    """Runs trials in compile and device workers, as in a search: a mutant may crash its worker."""
    cores, cache = len(os.sched_getaffinity(0)), default_cache_dir()
    builder = partial(TrialBuilder, target, device.arch, cache)
    judge, bindings = partial(TrialJudge, choice.spec, build_known_good(device.arch, cache)), choice.bindings
    compilers = max(1, cores // 2) if device.predicted else cores
    modules = _EMULATOR_MODULES if device.predicted else _GPU_MODULES
    care = Care() if device.predicted else Care(spares=1, check_timeout_s=DEVICE_CHECK_LIMIT_S)
    outcomes = []
    with (
        WorkerPool(builder, compilers, COMPILE_LIMIT_S, name=COMPILE_WORKER_NAME) as builders,
        WorkerPool(
            judge, len(bindings), _JUDGE_LIMIT_S, name=DEVICE_WORKER_NAME, preload=modules, care=care, bindings=bindings
        ) as pool,
    ):
        for outcome in run_trials(trials, builders, pool):
            outcomes.append(outcome)
            record.add(outcome)
            progress(f"{len(outcomes)} of {len(trials)} kernels: {outcome.trial.name}")
    return outcomes
