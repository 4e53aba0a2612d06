"""Large arrays in files beside a pickle: contents, sharing between processes, and what is not put there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evoengine.device.workers.array_file import FILE_BYTES, dumps
from evoengine.device.workers.pool import WorkerPool
from evoengine.device.workers.sidecar_process import SidecarProcess

LARGE = FILE_BYTES // 2


def drawn(seed: int, count: int = LARGE) -> NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, 2**16, count, np.uint16)


def sizes(folder: Path) -> list[int]:
    return sorted(path.stat().st_size for path in folder.iterdir())


def test_large_arrays_lie_in_one_file_and_come_back(tmp_path: Path) -> None:
    value = {"a": drawn(1), "b": [drawn(2).reshape(64, -1), 7], "small": drawn(3, 10), "text": "x"}
    data = dumps(value, tmp_path)
    assert len(data) < 1000
    assert len(sizes(tmp_path)) == 1
    back = pickle.loads(data)
    np.testing.assert_array_equal(back["a"], value["a"])
    np.testing.assert_array_equal(back["b"][0], drawn(2).reshape(64, -1))
    np.testing.assert_array_equal(back["small"], value["small"])
    assert (back["b"][1], back["text"]) == (7, "x")
    assert type(back["a"]) is np.ndarray


def test_a_loaded_array_is_not_written_again(tmp_path: Path) -> None:
    first = pickle.loads(dumps([drawn(1, 4 * LARGE), drawn(2)], tmp_path))
    before = sizes(tmp_path)
    again = pickle.loads(dumps((first[1], first[0][LARGE:], drawn(4, 8)), tmp_path))
    assert sizes(tmp_path) == before
    np.testing.assert_array_equal(again[0], drawn(2))
    np.testing.assert_array_equal(again[1], drawn(1, 4 * LARGE)[LARGE:])


def test_what_a_process_writes_stays_its_own(tmp_path: Path) -> None:
    data = dumps(drawn(1), tmp_path)
    mine = pickle.loads(data)
    mine[:] = 0
    np.testing.assert_array_equal(pickle.loads(data), drawn(1))


@pytest.mark.parametrize(
    "array",
    [
        drawn(1).reshape(64, -1).T,
        drawn(1, 2 * LARGE)[::2],
        np.array([{"a": 1}] * FILE_BYTES, dtype=object),
        np.zeros(0, np.uint16),
    ],
    ids=["transposed", "strided", "objects", "empty"],
)
def test_other_arrays_are_part_of_the_pickle(tmp_path: Path, array: NDArray[np.generic]) -> None:
    np.testing.assert_array_equal(pickle.loads(dumps(array, tmp_path)), array)
    assert sizes(tmp_path) == []


def test_a_full_disk_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    np.testing.assert_array_equal(pickle.loads(dumps(drawn(1), tmp_path)), drawn(1))
    monkeypatch.undo()
    np.testing.assert_array_equal(pickle.loads(dumps(drawn(1), tmp_path / "none")), drawn(1))


@dataclass(frozen=True)
class Summer:
    """Served by a worker: sums what its factory was given, and says in which files it found it."""

    values: NDArray[np.uint16]

    def total(self) -> int:
        return int(self.values.sum(dtype=np.int64))

    def mapped(self) -> str:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return " ".join({line.split()[-1] for line in lines if "/arrays-" in line})

    def die(self) -> None:
        os._exit(1)


def test_workers_and_their_successors_map_what_another_process_made(tmp_path: Path) -> None:
    make: Callable[[], NDArray[np.uint16]] = partial(drawn, 5, 4 * LARGE)
    with closing(SidecarProcess("maker", (), tmp_path)) as maker:
        values = maker.run(make)
    np.testing.assert_array_equal(values, make())
    (file,) = tmp_path.iterdir()
    expected = int(values.sum(dtype=np.int64))
    with WorkerPool(partial(Summer, values), 1, 60.0) as pool:
        for _ in range(2):
            assert pool.submit("total").result() == expected
            assert pool.submit("mapped").result() == str(file)
            with pytest.raises(Exception, match="exit code 1"):
                pool.submit("die").result()
    assert sizes(tmp_path) == [values.nbytes]
