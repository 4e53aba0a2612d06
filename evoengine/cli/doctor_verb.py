"""``doctor``: prints the diagnosis."""

from __future__ import annotations

from evoengine.cli.console import make_console, print_json
from evoengine.cli.doctor import diagnose


def run_doctor(*, json_output: bool) -> bool:
    """Prints what this machine has and lacks.

    Returns:
        Whether a search can run somewhere here.
    """
    diagnosis = diagnose()
    devices = diagnosis.devices
    if json_output:
        facts = [
            {"name": probe.name, "ok": probe.ok, "detail": probe.detail, "fix": probe.fix} for probe in diagnosis.probes
        ]
        print_json({"devices": list(devices), "probes": facts})
        return bool(devices)
    console = make_console()
    for probe in diagnosis.probes:
        mark = "[green]ok     [/]" if probe.ok else "[yellow]missing[/]"
        console.print(f"{mark} {probe.name:<13} ", end="")
        console.print(probe.detail, markup=False)
        if probe.fix and not probe.ok:
            console.print(f"        fix: {probe.fix}", markup=False)
    if "cuda" in devices:
        console.print("a search runs on the GPU; --device emulator predicts instead")
    elif devices:
        console.print("a search runs on the emulator: real compiles, checked numerics, predicted times")
    else:
        console.print("no search can run here: mend what is missing above")
    return bool(devices)
