"""The program's main module in spawned processes: imported when something of it is needed, not at their start.

Python's ``spawn`` runs the main module again in each child. A script that calls ``evoengine.search`` without
``if __name__ == "__main__"`` would search in its own workers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import spawn
from typing import Any, Final

_KEYS: Final = ("init_main_from_name", "init_main_from_path")
_LOCK: Final = threading.Lock()


def main_module() -> dict[str, str]:
    """Returns where the main module comes from, for :func:`import_main_on_demand`; empty if it has no file."""
    data: dict[str, Any] = spawn.get_preparation_data("")
    return {key: data[key] for key in _KEYS if key in data}


@contextmanager
def main_left_out() -> Iterator[None]:
    """Leaves out the main module of processes that this thread spawns in the block."""
    with _LOCK:
        before, here = spawn.get_preparation_data, threading.get_ident()

        def prepare(name: str) -> dict[str, Any]:
            data: dict[str, Any] = before(name)
            left_out = _KEYS if threading.get_ident() == here else ()
            return {key: value for key, value in data.items() if key not in left_out}

        spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            spawn.get_preparation_data = before


def import_main_on_demand(main: Mapping[str, str]) -> None:
    """Imports the parent's main module in this process at the first look-up of one of its names, as by ``pickle``.

    Args:
        main: Result of :func:`main_module` in the parent.
    """
    own = sys.modules["__main__"]

    def look_up(name: str) -> Any:
        if not main or name.startswith("__") or sys.modules["__main__"] is not own:
            raise AttributeError(f"module '__main__' has no attribute '{name}'")
        spawn.prepare(dict(main))
        return getattr(sys.modules["__main__"], name)

    own.__dict__["__getattr__"] = look_up
