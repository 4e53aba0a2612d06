"""The race pre-filter against the exact race detector, on random programs of accesses and barriers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory
from evoengine.emulator.checks.race_detector import RaceDetector
from evoengine.emulator.checks.race_observer import RaceObserver
from evoengine.emulator.checks.race_prefilter import PossibleRace, RacePrefilter
from evoengine.emulator.faults import SiteFault

CTAS, WARPS, SMEM = 3, 4, 64
THREADS = 32 * WARPS
GROUP_WARPS = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], np.bool_)


def lanes(warps: np.ndarray) -> np.ndarray:
    """Mask of threads from a mask of warps."""
    return np.repeat(warps, 32, axis=1)


def random_access(rng: np.random.Generator, kinds: tuple[str, ...]) -> tuple[str, np.ndarray, int, np.ndarray | None]:
    """Kind, word indices, word size and mask of a random access.

    Mostly each warp has its own words; shared memory is small, so that accesses often overlap.
    """
    kind = kinds[rng.integers(len(kinds))]
    size = int(2 ** rng.integers(0 if kind == "read" else 1, 5))
    words = SMEM // size
    rows = int(rng.choice([1, CTAS]))
    warp = np.arange(THREADS)[None, :] // 32
    own = (warp * words // WARPS + rng.integers(max(1, words // WARPS), size=(rows, THREADS))) % words
    index = own if rng.random() < 0.85 else rng.integers(words, size=(rows, 1)).repeat(THREADS, axis=1)
    mask = None if rng.random() < 0.5 else lanes(rng.random((int(rng.choice([1, CTAS])), WARPS)) < 0.6)
    return kind, index, size, mask


def random_barrier(rng: np.random.Generator, orderly: bool) -> np.ndarray | None:
    """Mask of a random barrier: all threads, all threads of some CTAs, a group of warps, or arbitrary warps.

    Orderly programs have no barriers of arbitrary warps.
    """
    draw = rng.random() * (0.95 if orderly else 1.0)
    if draw < 0.4:
        return None
    if draw < 0.6:
        return lanes(np.repeat(rng.random((CTAS, 1)) < 0.6, WARPS, axis=1))
    if draw < 0.95:
        return lanes(GROUP_WARPS[rng.integers(2)] & (rng.random((CTAS, 1)) < 0.8))
    return lanes(rng.random((CTAS, WARPS)) < 0.6)


def finds_race(observer: RaceObserver, seed: int, orderly: bool) -> bool:
    """Whether an observer reports a race in a random program.

    Orderly programs have only barriers of the whole CTA or of fixed groups, and no asynchronous copies.
    """
    rng = np.random.default_rng(seed)
    kinds = ("read", "read", "write", *(() if orderly else ("land",)))
    try:
        for _ in range(int(rng.integers(2, 14))):
            if rng.random() < 0.5:
                observer.barrier(random_barrier(rng, orderly))
                continue
            kind, index, size, mask = random_access(rng, kinds)
            if kind == "land":
                observer.land(index, size, mask)
            else:
                (observer.read if kind == "read" else observer.write)(index, size, mask, 0)
        observer.finish()
    except (SiteFault, PossibleRace):
        return True
    return False


def test_the_prefilter_misses_no_race() -> None:
    races = 0
    for seed in range(300):
        exact = finds_race(RaceDetector(CTAS, THREADS, SMEM), seed, False)
        races += exact
        assert not exact or finds_race(RacePrefilter(CTAS, THREADS, SMEM), seed, False), seed
    assert 50 < races < 250, "both kinds of programs are drawn"


def test_the_prefilter_accepts_race_free_orderly_programs() -> None:
    races = 0
    for seed in range(300):
        exact = finds_race(RaceDetector(CTAS, THREADS, SMEM), seed, True)
        races += exact
        assert exact == finds_race(RacePrefilter(CTAS, THREADS, SMEM), seed, True), seed
    assert 50 < races < 250, "both kinds of programs are drawn"


@pytest.mark.parametrize("observer", [RaceDetector, RacePrefilter])
def test_a_race_within_a_group_is_found_at_different_rounds(
    observer: type[RaceDetector | RacePrefilter],
) -> None:
    """In one instruction the warps of a group write the same word; other warps, at another round, write other words."""
    words = np.array([[0, 0, 4, 8]]).repeat(32, axis=1)
    group = lanes(GROUP_WARPS[:1].repeat(CTAS, axis=0))
    raced, ordered = observer(CTAS, THREADS, SMEM), observer(CTAS, THREADS, SMEM)
    raced.barrier(group)
    with pytest.raises((SiteFault, PossibleRace)):
        write(raced, words, [[True, True, True, True]])
    write(ordered, words, [[True, False, True, False]])
    ordered.barrier(group)
    write(ordered, words, [[False, True, False, True]])


def test_a_race_is_found_after_any_number_of_barriers() -> None:
    words, waited, passed = np.zeros((1, 64), np.int64), RaceDetector(1, 64, 64), 0
    for barriers in (3, 2**15 - 2, 2**15 - 1, 2**15, 40_000):
        for _ in range(barriers - passed):
            waited.barrier(None)
        passed = barriers
        ordered, raced = deepcopy(waited), deepcopy(waited)
        for detector in (ordered, raced):
            write(detector, words, [[True, False]])
        ordered.barrier(None)
        write(ordered, words, [[False, True]])
        with pytest.raises(SiteFault):
            write(raced, words, [[False, True]])


def write(observer: RaceDetector | RacePrefilter, words: np.ndarray, warps: list[list[bool]]) -> None:
    """Observes a write by some warps and checks all accesses so far."""
    observer.write(words, 4, lanes(np.array(warps)), 0)
    observer.finish()


GROUPS = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[128]; int t = threadIdx.x, group = t / 64;
  s[t] = x[t];
  asm volatile("bar.sync %0, 64;" :: "r"(group + 1) : "memory");
  int v = s[FROM];
  __syncthreads();
  s[127 - t] = v;
  __syncthreads();
  y[t] = s[t]; }"""


def launch(ptx: str) -> np.ndarray:
    """Runs the kernel with race detection."""
    memory = GlobalMemory()
    x, y = memory.alloc(np.arange(128, dtype=np.int32)), memory.alloc(512)
    Emulator(ptx).launch(2, 128, [x, y], memory=memory, races=True)
    return memory.read(y, np.int32)


def test_group_barriers_order_only_their_group(
    compile_cuda: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Communication within a group passes without the exact detector; between groups it is a race."""
    with pytest.raises(EmulatorError) as caught:
        launch(compile_cuda(GROUPS.replace("FROM", "t ^ 64")))
    assert caught.value.kind is FaultKind.DATA_RACE
    assert "ld.shared" in caught.value.fault.ptx_text
    monkeypatch.setattr("evoengine.emulator.emulator.RaceDetector", lambda *_, **__: pytest.fail("the detector ran"))
    got = launch(compile_cuda(GROUPS.replace("FROM", "t ^ 32")))
    np.testing.assert_array_equal(got, (np.arange(128) ^ 32)[::-1])


def test_memory_is_restored_before_the_detector_runs(compile_cuda: Callable[..., str]) -> None:
    """A kernel that adds in place adds only once, although it runs twice."""
    text = """extern "C" __global__ void f(const int* x, int* y) {
      __shared__ int s[128]; int t = threadIdx.x;
      if (t < 64) { s[t] = x[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); y[t] += s[t ^ 32]; }
      if (t >= 32 && t < 96) { asm volatile("bar.sync 2, 64;" ::: "memory"); y[t + 32] += 1; } }"""
    got = launch(compile_cuda(text))
    np.testing.assert_array_equal(got, np.concatenate([np.arange(64) ^ 32, np.ones(64, int)]))
