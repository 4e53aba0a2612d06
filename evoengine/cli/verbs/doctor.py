"""``doctor``: prints the diagnosis."""

from __future__ import annotations

from typing import Any

from evoengine.cli.options.config_file import HERE, Setting, config_files
from evoengine.cli.output.console import make_console, print_json
from evoengine.engine.devices.environment import BYTECODE, diagnose


def run_doctor(*, settings: list[Setting], json_output: bool) -> bool:
    """Prints the state of this machine and the defaults that files set.

    Args:
        settings: Defaults, in the order in which later ones win.
        json_output: Whether to print one JSON document.

    Returns:
        Whether a search can run on this machine.
    """
    diagnosis = diagnose()
    devices = diagnosis.devices
    if json_output:
        facts = [
            {"name": probe.name, "ok": probe.ok, "detail": probe.detail, "fix": probe.fix} for probe in diagnosis.probes
        ]
        print_json({"devices": list(devices), "probes": facts, "defaults": _defaults(settings)})
        return bool(devices)
    console = make_console()
    for probe in diagnosis.probes:
        if probe.name == BYTECODE and not probe.ok:
            console.print("warning:", style="yellow", end=" ")
        else:
            console.print("ok     " if probe.ok else "missing", style="green" if probe.ok else "yellow", end=" ")
            console.print(f"{probe.name:<13} ", end="")
        console.print(probe.detail, markup=False, soft_wrap=True)  # unbroken, so that paths can be copied
        if probe.fix and not probe.ok:
            console.print(f"        fix: {probe.fix}", markup=False, soft_wrap=True)
    for setting in settings:
        console.print(f"default {setting.file}: {setting}", markup=False)
    if not settings:
        console.print(f"default none set: {_searched_files()}", markup=False)
    if "cuda" in devices:
        console.print("a search runs on the GPU; with --device emulator it predicts times")
    elif devices:
        console.print("a search runs on the emulator: it compiles with NVRTC, checks results and predicts times")
    else:
        console.print("no search can run here: install what is missing above")
    return bool(devices)


def _defaults(settings: list[Setting]) -> list[dict[str, Any]]:
    return [
        {"file": str(one.file), "verb": " ".join(one.verb), "option": one.option, "value": one.shown}
        for one in settings
    ]


def _searched_files() -> str:
    """Why no defaults are set."""
    files = config_files()
    return f"{', '.join(map(str, files))}: empty" if files else f"no {HERE} here, and none of the user"
