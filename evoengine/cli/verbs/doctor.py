"""``doctor``: prints the diagnosis."""

from __future__ import annotations

from typing import Any

from evoengine.cli.options.config_file import HERE, Setting, config_files
from evoengine.cli.output.console import make_console, print_json
from evoengine.engine.environment_check import diagnose


def run_doctor(*, settings: list[Setting], json_output: bool) -> bool:
    """Prints what this machine has and lacks, and the defaults that files set.

    Args:
        settings: the defaults, the one that wins last.
        json_output: as one JSON document.

    Returns:
        Whether a search can run somewhere here.
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
        mark = "[green]ok     [/]" if probe.ok else "[yellow]missing[/]"
        console.print(f"{mark} {probe.name:<13} ", end="")
        console.print(probe.detail, markup=False, soft_wrap=True)  # paths and commands are there to be copied
        if probe.fix and not probe.ok:
            console.print(f"        fix: {probe.fix}", markup=False, soft_wrap=True)
    for setting in settings:
        console.print(f"default {setting.file}: {setting}", markup=False)
    if not settings:
        console.print(f"default none set: {_looked_at()}", markup=False)
    if "cuda" in devices:
        console.print("a search runs on the GPU; --device emulator predicts instead")
    elif devices:
        console.print("a search runs on the emulator: real compiles, checked numerics, predicted times")
    else:
        console.print("no search can run here: mend what is missing above")
    return bool(devices)


def _defaults(settings: list[Setting]) -> list[dict[str, Any]]:
    return [
        {"file": str(one.file), "verb": " ".join(one.verb), "option": one.option, "value": one.value}
        for one in settings
    ]


def _looked_at() -> str:
    """Where files of defaults were looked for, when they set nothing."""
    files = config_files()
    return f"{', '.join(map(str, files))} says nothing" if files else f"there is no {HERE} here, and none of the user"
