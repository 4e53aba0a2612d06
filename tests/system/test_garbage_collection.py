"""``collect_rarely`` in a process of its own: cycles are still freed, and the end of the process is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import atexit, gc, json, sys, weakref
runs, told = [], {}
gc.callbacks.append(lambda phase, _: runs.append(phase))
atexit.register(lambda: print(json.dumps(told | {"frozen": gc.get_freeze_count()})))  # runs after those set later
if sys.argv[1] == "rarely":
    from evoengine.system.garbage_collection import collect_rarely
    collect_rarely()
runs.clear()
kept = [[] for _ in range(10_000)]
told["runs"] = len(runs)
class Node: pass
first = Node()
first.itself = first
alive = weakref.ref(first)
del first
for _ in range(40_000):
    cycle = Node()
    cycle.itself = cycle
told["freed"] = alive() is None
"""


def told(how: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("how", "is_rare"), [("rarely", True), ("as usual", False)])
def test_collections_are_rare_cycles_are_freed_and_nothing_is_visited_at_the_end(how: str, *, is_rare: bool) -> None:
    found = told(how)
    assert (found["runs"] == 0) == is_rare
    assert found["freed"]
    assert (found["frozen"] > 1000) == is_rare
