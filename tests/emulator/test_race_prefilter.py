"""The quick look for races against the exact checker: on random programs of accesses and barriers it misses nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory
from evoengine.emulator.checks.faults import SiteFault
from evoengine.emulator.checks.race_detector import RaceDetector, RaceObserver
from evoengine.emulator.checks.race_prefilter import PossibleRace, RacePrefilter

CTAS, WARPS, SMEM = 3, 4, 64
THREADS = 32 * WARPS
TEAMS = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], np.bool_)


def lanes(warps: np.ndarray) -> np.ndarray:
    """A mask of threads from one of warps."""
    return np.repeat(warps, 32, axis=1)


def random_access(rng: np.random.Generator, kinds: tuple[str, ...]) -> tuple[str, np.ndarray, int, np.ndarray | None]:
    """A kind, word indices, a size, a mask: small words, so that accesses often meet; mostly each warp has its own."""
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
    """Of everybody, of some CTAs, of a team, or else of arbitrary warps."""
    draw = rng.random() * (0.95 if orderly else 1.0)
    if draw < 0.4:
        return None
    if draw < 0.6:
        return lanes(np.repeat(rng.random((CTAS, 1)) < 0.6, WARPS, axis=1))
    if draw < 0.95:
        return lanes(TEAMS[rng.integers(2)] & (rng.random((CTAS, 1)) < 0.8))
    return lanes(rng.random((CTAS, WARPS)) < 0.6)


def finds(watch: RaceObserver, seed: int, orderly: bool) -> bool:
    """Whether a watch stops a random program; in an orderly one warps meet as teams, and nothing lands."""
    rng = np.random.default_rng(seed)
    kinds = ("read", "read", "write", *(() if orderly else ("land",)))
    try:
        for _ in range(int(rng.integers(2, 14))):
            if rng.random() < 0.5:
                watch.barrier(random_barrier(rng, orderly))
                continue
            kind, index, size, mask = random_access(rng, kinds)
            if kind == "land":
                watch.land(index, size, mask)
            else:
                (watch.read if kind == "read" else watch.write)(index, size, mask, 0)
        watch.finish()
    except (SiteFault, PossibleRace):
        return True
    return False


def test_the_screen_misses_no_race() -> None:
    races = 0
    for seed in range(300):
        exact = finds(RaceDetector(CTAS, THREADS, SMEM), seed, False)
        races += exact
        assert not exact or finds(RacePrefilter(CTAS, THREADS, SMEM), seed, False), seed
    assert 50 < races < 250, "both kinds of programs are drawn"


def test_the_screen_suspects_no_orderly_program_without_a_race() -> None:
    races = 0
    for seed in range(300):
        exact = finds(RaceDetector(CTAS, THREADS, SMEM), seed, True)
        races += exact
        assert exact == finds(RacePrefilter(CTAS, THREADS, SMEM), seed, True), seed
    assert 50 < races < 250, "both kinds of programs are drawn"


@pytest.mark.parametrize("watch", [RaceDetector, RacePrefilter])
def test_a_race_within_a_team_is_found_while_other_warps_have_met_less_often(
    watch: type[RaceDetector | RacePrefilter],
) -> None:
    """One instruction of all warps: those of a team write the same word, the others one of their own each."""
    words = np.array([[0, 0, 4, 8]]).repeat(32, axis=1)
    team = lanes(TEAMS[:1].repeat(CTAS, axis=0))
    raced, ordered = watch(CTAS, THREADS, SMEM), watch(CTAS, THREADS, SMEM)
    raced.barrier(team)
    with pytest.raises((SiteFault, PossibleRace)):
        write(raced, words, [[True, True, True, True]])
    write(ordered, words, [[True, False, True, False]])
    ordered.barrier(team)
    write(ordered, words, [[False, True, False, True]])


def write(watch: RaceDetector | RacePrefilter, words: np.ndarray, warps: list[list[bool]]) -> None:
    """Some warps write, and what has come so far is judged."""
    watch.write(words, 4, lanes(np.array(warps)), 0)
    watch.finish()


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
    """Runs the kernel with the race check."""
    memory = GlobalMemory()
    x, y = memory.alloc(np.arange(128, dtype=np.int32)), memory.alloc(512)
    Emulator(ptx).launch(2, 128, [x, y], memory=memory, races=True)
    return memory.read(y, np.int32)


def test_barriers_of_groups_are_told_from_those_of_all(
    compile_cuda: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchange within a group passes without the exact checker; between groups it is a race."""
    with pytest.raises(EmulatorError) as caught:
        launch(compile_cuda(GROUPS.replace("FROM", "t ^ 64")))
    assert caught.value.kind is FaultKind.DATA_RACE
    assert "ld.shared" in caught.value.fault.ptx_text
    monkeypatch.setattr("evoengine.emulator.emulator.RaceDetector", None)
    got = launch(compile_cuda(GROUPS.replace("FROM", "t ^ 32")))
    np.testing.assert_array_equal(got, (np.arange(128) ^ 32)[::-1])


def test_a_suspicion_leaves_no_trace(compile_cuda: Callable[..., str]) -> None:
    """Memory is as before when the exact checker starts over, so a kernel that adds in place adds once."""
    text = """extern "C" __global__ void f(const int* x, int* y) {
      __shared__ int s[128]; int t = threadIdx.x;
      if (t < 64) { s[t] = x[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); y[t] += s[t ^ 32]; }
      if (t >= 32 && t < 96) { asm volatile("bar.sync 2, 64;" ::: "memory"); y[t + 32] += 1; } }"""
    got = launch(compile_cuda(text))
    np.testing.assert_array_equal(got, np.concatenate([np.arange(64) ^ 32, np.ones(64, int)]))
