"""``selftest``: prints which known-wrong kernels the gate rejects, and how often equal kernels are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.engine.checks.null_control import Condition, null_control
from evoengine.engine.checks.selftest import selftest
from evoengine.engine.options.verbs import SelftestOptions
from evoengine.model import DeviceInfo
from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.selftest.null_control import NullRun
from evoengine.search.selftest.score import Score
from evoengine.search.selftest.selftest import SelftestResult, SelftestVerdict

_REASON_WIDTH: Final = 110


def run_selftest(options: SelftestOptions, *, json_output: bool) -> bool:
    """Tests the parity gate and prints the result.

    Returns:
        Whether it rejected every mutant that this device can detect, and passed every valid config.

    Raises:
        UsageError: A family, a mutant or the device is unknown.
        EvoEngineError: The device cannot be used.
    """
    status = make_console(stderr=True).status("", spinner="line")

    def show(line: str) -> None:
        status.start()  # not earlier: its thread must not run while workers are forked
        status.update(line)

    try:
        result, device = selftest(options, show)
    finally:
        status.stop()
    if json_output:
        print_json(_document(result, device, options))
    else:
        _print(make_console(), result, device)
    return result.passed


def run_null_control(options: SelftestOptions, *, json_output: bool) -> bool:
    """Tests the acceptance rule on identical kernels and prints the result.

    Returns:
        Whether no kernel was accepted as faster than an identical one.

    Raises:
        UsageError: The device or the strategy is unknown.
        EvoEngineError: The device cannot be used.
    """
    notes = make_console(stderr=True)
    conditions, on_gpu = null_control(options, lambda run: notes.print(_run_line(run), markup=False))
    if json_output:
        print_json(_null_document(options, conditions))
    else:
        _print_null(conditions, on_gpu=on_gpu)
    return not any(condition.accepted for condition in conditions)


def _run_line(run: NullRun) -> str:
    return f"seed {run.seed}: {run.evaluated} candidates in {run.elapsed_s:.1f} s, {run.accepted} false acceptances"


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
        return f"DEFECT, not tested: {outcome.reason}"
    return "not visible to this device" if mutant in result.unseen else "SURVIVED"


def _summary(result: Score, device: DeviceInfo) -> list[str]:
    killed, survivors = len(result.killed), result.survivors
    lines = [f"device            {device.name}, {device.kind}, compiled for {device.arch}"]
    rate = result.kill_rate
    if rate is not None:
        lines.append(f"kill rate         {killed} of {killed + len(survivors)} mutants, {100 * rate:.1f} %")
    if result.unseen:
        seen = sum(mutant.hazard for mutant in result.killed)
        lines.append(
            f"hazards           {seen} killed, counted above; {len(result.unseen)} not counted, because this device "
            f"may compute correct results for them: {_names(result.unseen)}"
        )
    if survivors:
        lines.append(f"survivors         {_names(survivors)}")
    if result.defects:
        lines.append(f"defects           {len(result.defects)} mutants could not be built: {_names(result.defects)}")
    share = result.false_rejection_rate
    if share is not None:
        lines.append(
            f"false rejections  {len(result.rejected)} of {len(result.controls)} valid configs, {100 * share:.1f} %"
        )
    return lines


def _names(mutants: Sequence[Mutant]) -> str:
    return ", ".join(mutant.name for mutant in mutants)


def _document(result: Score, device: DeviceInfo, options: SelftestOptions) -> dict[str, Any]:
    return {
        "device": device.name,
        "device_kind": device.kind,
        "arch": device.arch,
        "seed": options.seed,
        "passed": result.passed,
        "kill_rate": result.kill_rate,
        "false_rejection_rate": result.false_rejection_rate,
        "valid": len(result.controls),
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


def _print_null(conditions: Sequence[Condition], *, on_gpu: bool) -> None:
    console = make_console()
    table = Table(box=None, pad_edge=False)
    for name in ("device", "searches", "candidates", "false acceptances", "refused in duels", "luckiest", "failed"):
        table.add_column(name, justify="left" if name == "device" else "right", no_wrap=True)
    for condition in conditions:
        table.add_row(
            condition.name,
            str(len(condition.runs)),
            f"{sum(run.evaluated for run in condition.runs):,}",
            str(condition.accepted),
            str(sum(run.refused for run in condition.runs)),
            f"{1 - min(run.luckiest for run in condition.runs):.1%}",
            str(sum(run.failed for run in condition.runs)),
        )
    print_table(console, table)
    where = "" if on_gpu else "; without a GPU, times come from a formula with injected noise"
    console.print(f"\nevery candidate is the same kernel under another name{where}", markup=False)


def _null_document(options: SelftestOptions, conditions: Sequence[Condition]) -> dict[str, Any]:
    return {
        "budget": options.budget,
        "strategy": options.strategy,
        "accepted": sum(condition.accepted for condition in conditions),
        "conditions": [
            {"name": condition.name, "accepted": condition.accepted, "runs": [asdict(run) for run in condition.runs]}
            for condition in conditions
        ],
    }
