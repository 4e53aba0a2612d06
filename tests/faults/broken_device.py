"""Runs the command line with one device that can be broken beyond recovery.

    python broken_device.py FOLDER python -m evoengine search …

Once FOLDER contains a file ``broken``, the self-check of every worker of device 1 reports wrong results of the
known-good kernel. FOLDER/pid holds the process id of this worker. The device itself is not affected, so this is safe on
a GPU. Worker processes import this file before all other modules and read FOLDER from the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from evoengine.device import device_selfcheck
from evoengine.device.protocols import Device
from evoengine.engine.workers import modules as worker_modules
from evoengine.errors import LaunchError
from evoengine.kernel.records import Kernel

WORKER: Final = "device worker 1"
_VARIABLE: Final = "EVOENGINE_TEST_BROKEN"
_check_device = device_selfcheck.check_device


def check_device(device: Device, known_good: Kernel) -> None:
    """Runs the real check, and fails for device 1 once it is marked as broken."""
    _check_device(device, known_good)
    folder = Path(os.environ[_VARIABLE])
    if Path("/proc/self/comm").read_text().strip() == WORKER:
        (folder / "pid").write_text(str(os.getpid()))
        if (folder / "broken").exists():
            raise LaunchError("a known-good kernel got 8192 of 8192 values wrong on this device")


if _VARIABLE in os.environ:
    device_selfcheck.check_device = check_device  # before any module imports the function

if __name__ == "__main__":
    os.environ[_VARIABLE], command = sys.argv[1], sys.argv[2:]
    for name in ("_EMULATOR_MODULES", "_GPU_MODULES"):
        setattr(worker_modules, name, (Path(__file__).stem, *getattr(worker_modules, name)))
    from evoengine.cli.app import main

    sys.argv = command[command.index("evoengine") :]
    main()
