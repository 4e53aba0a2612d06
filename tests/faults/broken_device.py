"""Runs the command line with one device that can be broken beyond recovery.

    python broken_device.py FOLDER python -m evoengine search …

From the moment that FOLDER holds a file ``broken``, every process that is to work on device 1 finds that the known-good
kernel gave wrong numbers. Which process that is stands in FOLDER too. The device itself suffers nothing, so this is
harmless on a GPU. Worker processes have this file as their main module, and learn of FOLDER through the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from evoengine.device import device_selfcheck as health
from evoengine.device.protocols import Device
from evoengine.errors import LaunchError
from evoengine.kernel.records import Kernel

WORKER: Final = "device worker 1"
_VARIABLE: Final = "EVOENGINE_TEST_BROKEN"
_check_device = health.check_device


def check_device(device: Device, known_good: Kernel) -> None:
    """The real check, whose verdict is turned around once the device is broken."""
    _check_device(device, known_good)
    folder = Path(os.environ[_VARIABLE])
    if Path("/proc/self/comm").read_text().strip() == WORKER:
        (folder / "pid").write_text(str(os.getpid()))
        if (folder / "broken").exists():
            raise LaunchError("a known-good kernel got 8192 of 8192 values wrong on this device")


if _VARIABLE in os.environ:
    health.check_device = check_device  # before anything imports it from there

if __name__ == "__main__":
    os.environ[_VARIABLE], command = sys.argv[1], sys.argv[2:]
    health.check_device = check_device
    from evoengine.cli.app import main

    sys.argv = command[command.index("evoengine") :]
    main()
