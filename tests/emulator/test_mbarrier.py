"""mbarriers, named barriers that threads only arrive at, and setmaxnreg: results, and faults for misuse."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind
from evoengine.emulator.emulator import Asynchrony

MODES = ("early", "late")
# Warp 0 hands values to warp 1, which changes them and hands them back, in several rounds.
EXCHANGE = """
extern "C" __global__ void exchange(const int* in, int* out, int rounds) {
  __shared__ __align__(8) u64 bars[3]; __shared__ __align__(16) int box[32]; __shared__ int count;
  const u32 full = shared_address(bars), empty = full + 8, other = full + 16;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) { init(full, 32); init(empty, 32); init(other, 1000); count = 0; }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int r = 0; r < rounds; r++) {
      SEND_WAIT
      box[lane] = in[r * 32 + lane];
      SEND
    }
  } else {
    for (int r = 0; r < rounds; r++) {
      RECEIVE_WAIT
      out[r * 32 + lane] = box[31 - lane] + r;
      RECEIVE
    }
  }
}
"""
STEPS = {
    "SEND_WAIT": "wait(empty, (r & 1) ^ 1);",
    "SEND": "arrive(full);",
    "RECEIVE_WAIT": "wait(full, r & 1);",
    "RECEIVE": "arrive(empty);",
}


def exchange(compile_hopper: Callable[[str], str], asynchrony: Asynchrony = "early", **steps: str) -> None:
    """Runs the exchange with some steps replaced, and checks its results."""
    text = EXCHANGE
    for name, step in {**STEPS, **steps}.items():
        text = re.sub(rf"\b{name}\b", step.replace("\\", r"\\"), text)
    values = np.arange(5 * 32, dtype=np.int32)
    out = np.zeros_like(values)
    Emulator(compile_hopper(text)).launch(1, 64, [values, out, 5], races=True, asynchrony=asynchrony)
    expected = values.reshape(5, 32)[:, ::-1] + np.arange(5)[:, None]
    np.testing.assert_array_equal(out.reshape(5, 32), expected)


TOKEN_WAIT = """u64 token; u32 done;
      asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(full) : "memory");
      do { asm volatile("{.reg .pred p; mbarrier.OPERATION.acquire.cta.shared::cta.b64 p, [%1], %2 HINT;"
        "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(full), "l"(token) : "memory"); } while (!done);"""
POLL = """{ u32 done;
      do { asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(full), "r"(r & 1) : "memory"); } while (!done); }"""
LEADER = "if (lane == 0) wait(full, r & 1);"
COUNT = """__syncwarp(); if (lane % 8 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 8;" :: "r"(full) : "memory");"""
BYTES = """asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 3;" :: "r"(full) : "memory");
      arrive(full);
      asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 3;" :: "r"(full) : "memory");"""


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    "steps",
    [{}, {"RECEIVE_WAIT": POLL}, {"RECEIVE_WAIT": LEADER}, {"SEND": COUNT}, {"SEND": BYTES}],
    ids=["try_wait", "test_wait", "one lane waits", "count", "bytes"],
)
def test_an_exchange_of_two_warps(
    compile_hopper: Callable[[str], str], steps: dict[str, str], asynchrony: Asynchrony
) -> None:
    exchange(compile_hopper, asynchrony, **steps)


@pytest.mark.parametrize(("operation", "hint"), [("try_wait", ""), ("try_wait", ", 1000"), ("test_wait", "")])
def test_state_tokens(compile_hopper: Callable[[str], str], operation: str, hint: str) -> None:
    """All 64 threads arrive and wait for the phase of their own arrival, as at a barrier of the CTA."""
    wait = TOKEN_WAIT.replace("OPERATION", operation).replace("HINT", hint)
    text = f"""extern "C" __global__ void f(int* out) {{
      __shared__ __align__(8) u64 bar; __shared__ int box[64];
      const u32 full = shared_address(&bar);
      if (threadIdx.x == 0) init(full, 64);
      __syncthreads();
      for (int r = 0; r < 3; r++) {{
        box[threadIdx.x] = threadIdx.x + r;
        {{ {wait} }}
        out[r * 64 + threadIdx.x] = box[63 - threadIdx.x];
        {{ {wait} }}
      }}
    }}"""
    out = np.zeros((3, 64), np.int32)
    Emulator(compile_hopper(text)).launch(1, 64, [out], races=True)
    np.testing.assert_array_equal(out, np.arange(63, -1, -1)[None, :] + np.arange(3)[:, None])


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ({"SEND_WAIT": ""}, (FaultKind.DATA_RACE, FaultKind.BARRIER_DEADLOCK)),
        ({"RECEIVE_WAIT": ""}, (FaultKind.DATA_RACE, FaultKind.UNINITIALISED_READ)),
        ({"RECEIVE_WAIT": "wait(empty, r & 1);"}, (FaultKind.DATA_RACE, FaultKind.BARRIER_DEADLOCK)),
        ({"SEND": "if (lane) arrive(full);"}, (FaultKind.BARRIER_DEADLOCK,)),
        (
            {"SEND_WAIT": STEPS["SEND_WAIT"] + STEPS["SEND"], "SEND": ""},
            (FaultKind.DATA_RACE, FaultKind.UNINITIALISED_READ),
        ),
    ],
    ids=["overwritten", "not waited for", "other mbarrier", "lane missing", "sent before the write"],
)
def test_missing_synchronisation(
    compile_hopper: Callable[[str], str], steps: dict[str, str], kinds: tuple[FaultKind, ...], asynchrony: Asynchrony
) -> None:
    with pytest.raises(EmulatorError) as caught:
        exchange(compile_hopper, asynchrony, **steps)
    assert caught.value.kind in kinds, caught.value


def for_all(bar: str, lanes: str = "lane == 0", count: int = 32) -> str:
    """Some lanes arrive for their whole warp."""
    return f'if ({lanes}) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], {count};" :: "r"({bar}) : "memory");'


SHUFFLE = 'asm volatile("{.reg .b32 t; shfl.sync.idx.b32 t, %0, 0, 31, -1;}" :: "r"(lane) : "memory");'
MATRIX = """{ u32 v; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
        : "=r"(v) : "r"(shared_address(box) + lane % 8 * 16) : "memory"); }"""
ORDERS = {
    "warp": "__syncwarp();",
    "barrier": "bar_sync(1 + threadIdx.x / 32, 32);",
    "bar.arrive": "bar_arrive(3 + threadIdx.x / 32, 1024);",
    "shuffle": SHUFFLE,
    "after ldmatrix": MATRIX + SHUFFLE,
    "between arrivals": "if (lane == 0) arrive(other); __syncwarp();",
}
NO_ORDERS = {
    "nothing": "",
    "arrival": "if (lane == 0) arrive(other);",
    "half of the warp": "if (lane < 16) __syncwarp(0xffff);",
    "its own lanes": "if (lane == 0) __syncwarp(1);",
}


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(("step", "bar"), [("SEND", "full"), ("RECEIVE", "empty")])
@pytest.mark.every(5)
def test_one_lane_arrives_for_its_warp(
    compile_hopper: Callable[[str], str], step: str, bar: str, order: str, asynchrony: Asynchrony
) -> None:
    exchange(compile_hopper, asynchrony, **{step: order + for_all(bar)})
    exchange(compile_hopper, asynchrony, **{step: order + for_all(bar, "lane % 16 == 3", 16)})


@pytest.mark.parametrize("order", NO_ORDERS.values(), ids=NO_ORDERS)
@pytest.mark.parametrize(("step", "bar"), [("SEND", "full"), ("RECEIVE", "empty")])
def test_one_lane_arrives_while_others_may_still_access(
    compile_hopper: Callable[[str], str], step: str, bar: str, order: str
) -> None:
    for arrival in (for_all(bar), for_all(bar, "lane % 16 == 3", 16)):
        with pytest.raises(EmulatorError) as caught:
            exchange(compile_hopper, "early", **{step: order + arrival})
        assert caught.value.kind is FaultKind.DATA_RACE


def test_ldmatrix_orders_what_lanes_did_before_but_not_its_own_read(compile_hopper: Callable[[str], str]) -> None:
    exchange(compile_hopper, SEND=MATRIX + for_all("full"))
    with pytest.raises(EmulatorError, match=r"warp 0 .*warp 1 reads"):
        exchange(compile_hopper, RECEIVE=MATRIX + for_all("empty"))


def test_a_later_arrival_of_one_lane_takes_back_no_release(compile_hopper: Callable[[str], str]) -> None:
    for step, bar in (("SEND", "full"), ("RECEIVE", "empty")):
        exchange(compile_hopper, "early", **{step: f"arrive({bar}); if (lane == 0) arrive(other);"})


def test_what_lanes_release_by_atomics_stays_released(compile_hopper: Callable[[str], str]) -> None:
    send = "atomicAdd(&count, 1); if (lane == 0) arrive(other);"
    exchange(compile_hopper, SEND=send, RECEIVE_WAIT="while (atomicAdd(&count, 0) < 32 * (r + 1)) {}")


PIECES = """
extern "C" __global__ void f(int* out) {
  __shared__ __align__(8) u64 bar; __shared__ int box[64];
  const u32 both = shared_address(&bar);
  if (threadIdx.x == 0) init(both, 2);
  __syncthreads();
  box[threadIdx.x] = threadIdx.x;
  if (CONDITION) __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(both);
  wait(both, 0);
  out[threadIdx.x] = box[63 - threadIdx.x];
}
"""


def test_ctas_whose_lanes_are_not_ordered_are_told_apart(compile_hopper: Callable[[str], str]) -> None:
    out = np.zeros(64, np.int32)
    Emulator(compile_hopper(PIECES.replace("CONDITION", "true"))).launch(128, 64, [out], races=True)
    np.testing.assert_array_equal(out, np.arange(63, -1, -1))
    for remainder in (0, 1):
        ptx = compile_hopper(PIECES.replace("CONDITION", f"blockIdx.x % 2 == {remainder}"))
        with pytest.raises(EmulatorError) as caught:
            Emulator(ptx).launch(128, 64, [out], races=True)
        assert caught.value.kind is FaultKind.DATA_RACE
        assert caught.value.fault.block is not None
        assert caught.value.fault.block[0] % 2 != remainder


TWICE = """
extern "C" __global__ void f(int* out) {
  __shared__ __align__(8) u64 bar;
  const u32 both = shared_address(&bar);
  if (threadIdx.x == 0) init(both, 2);
  __syncthreads();
  if (threadIdx.x % 32 == 0) arrive(both);
  BETWEEN
  if (threadIdx.x % 32 == 0) arrive(both);
  wait(both, 1);
  out[threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize("between", ["wait(both, 0);", "__syncthreads();"])
def test_an_arrival_after_the_phase_before(compile_hopper: Callable[[str], str], between: str) -> None:
    out = np.zeros(64, np.int32)
    Emulator(compile_hopper(TWICE.replace("BETWEEN", between))).launch(1, 64, [out], races=True)
    np.testing.assert_array_equal(out, 1)


@pytest.mark.parametrize("between", ["", "if (threadIdx.x < 32) wait(both, 0);"])
def test_an_arrival_that_may_count_for_the_phase_before(compile_hopper: Callable[[str], str], between: str) -> None:
    """One warp could complete that phase alone, by two arrivals."""
    ptx = compile_hopper(TWICE.replace("BETWEEN", between))
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(1, 64, [np.zeros(64, np.int32)], races=True)
    assert caught.value.kind is FaultKind.DATA_RACE
    assert "mbarrier.arrive" in caught.value.fault.ptx_text


INVAL = 'asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(bar) : "memory");'
MISUSE = """extern "C" __global__ void f(int* out, int zero) {
  __shared__ __align__(16) u64 bars[2];
  const u32 bar = shared_address(bars);
  BODY
  out[threadIdx.x] = (int)threadIdx.x;
}"""


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("arrive(bar);", FaultKind.ILLEGAL_VALUE, "no mbarrier has been initialised"),
        ("init(bar + 4, 1);", FaultKind.MISALIGNED, "8 bytes"),
        ("init(bar, zero);", FaultKind.ILLEGAL_VALUE, "count of an mbarrier of 0; 1 to 1048575"),
        ("init(bar, zero + (1 << 20));", FaultKind.ILLEGAL_VALUE, "1048576"),
        ("init(bar, 1); init(bar, 1);", FaultKind.ILLEGAL_VALUE, "invalidate it first"),
        ("init(bar, 1); expect(bar, 0xfffff); ", None, ""),
        ("init(bar, 2); expect(bar, 0xfffff); expect(bar, 1);", FaultKind.ILLEGAL_VALUE, "pending transaction bytes"),
        ("init(bar, 1); expect(bar, 16); arrive(bar);", FaultKind.ILLEGAL_VALUE, "beyond the count of its phase"),
        ("init(bar, 1); out[1] = (int)bars[0];", FaultKind.ILLEGAL_VALUE, "read of an mbarrier"),
        ("init(bar, 1); bars[0] = 1;", FaultKind.ILLEGAL_VALUE, "write over an mbarrier"),
        (f"init(bar, 1); {INVAL} bars[0] = 1;", None, ""),
        (f"init(bar, 1); arrive(bar); expect(bar, 8); {INVAL} init(bar, 1); arrive(bar); wait(bar, 0);", None, ""),
        (f"init(bar, 1); arrive(bar); {INVAL} init(bar, 1); wait(bar, 0);", FaultKind.BARRIER_DEADLOCK, "phase 0"),
        ("init(bar, 1); wait(bar, 0);", FaultKind.BARRIER_DEADLOCK, "phase 0, where 1 of 1 arrivals and 0 bytes"),
        ("init(bar, 1); wait(bar, 1); arrive(bar); wait(bar, 0);", None, ""),
        (
            "init(bar, 1); arrive(bar); wait(bar, 2 + zero);",
            FaultKind.ILLEGAL_VALUE,
            "parity of a phase is 0 or 1, not 2",
        ),
    ],
)
def test_misuse(compile_hopper: Callable[[str], str], body: str, kind: FaultKind | None, said: str) -> None:
    out = np.zeros(1, np.int32) if kind is None else np.zeros(2, np.int32)
    emulator = Emulator(compile_hopper(MISUSE.replace("BODY", body)))
    if kind is None:
        emulator.launch(1, 1, [out, 0], races=True)
        return
    with pytest.raises(EmulatorError, match=said) as caught:
        emulator.launch(1, 1, [out, 0], races=True)
    assert caught.value.kind is kind


WARP = """extern "C" __global__ void f(int* out) {
  __shared__ __align__(8) u64 bars; const u32 bar = shared_address(&bars); const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init(bar, 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    if (lane == 0) wait(bar, 0);
    out[lane] = __shfl_sync(~0u, lane, 31 - lane);
  } else if (lane == 0) {
    arrive(bar);
  }
}"""


def test_a_warp_reconverges_after_the_wait_of_one_lane(compile_hopper: Callable[[str], str]) -> None:
    out = np.zeros(32, np.int32)
    Emulator(compile_hopper(WARP)).launch(1, 64, [out])
    np.testing.assert_array_equal(out, np.arange(31, -1, -1))


def test_lanes_of_a_warp_may_wait_for_each_other(compile_hopper: Callable[[str], str]) -> None:
    text = WARP.replace("threadIdx.x < 32", "lane < 16").replace("else if (lane == 0)", "else if (lane == 16)")
    out = np.zeros(32, np.int32)
    Emulator(compile_hopper(text.replace("__shfl_sync(~0u, lane, 31 - lane)", "31 - lane"))).launch(1, 32, [out])
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, np.arange(31, -1, -1), 0))


COPIES = """extern "C" __global__ void f(const int* in, int* out) {
  __shared__ __align__(16) int box[128]; __shared__ __align__(8) u64 bars;
  const u32 bar = shared_address(&bars), at = shared_address(box + threadIdx.x % 32 * 4);
  if (threadIdx.x == 0) init(bar, 32);
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(in + threadIdx.x * 4) : "memory");
    ARRIVE
  }
  WAIT
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = box[threadIdx.x - 32];
}"""
NOINC = 'asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(bar) : "memory");'


def test_copies_arrive_at_an_mbarrier(compile_hopper: Callable[[str], str]) -> None:
    values, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)

    def launch(arrive: str, wait: str) -> None:
        text = COPIES.replace("ARRIVE", arrive).replace("WAIT", wait)
        Emulator(compile_hopper(text)).launch(1, 160, [values, out], races=True)

    waited, one = 'asm volatile("cp.async.wait_all;" ::: "memory");', for_all("bar", "threadIdx.x == 0")
    counted = NOINC.replace(".noinc", "")  # raises the pending count, so that the threads must arrive themselves, too
    for arrive in (NOINC, counted + "arrive(bar);", waited + "arrive(bar);", waited + "__syncwarp();" + one):
        out[:] = 0
        launch(arrive, "wait(bar, 0);")
        np.testing.assert_array_equal(out, values)
    late = "__syncwarp();" + waited + one
    for arrive, wait in (("arrive(bar);", "wait(bar, 0);"), (NOINC, ""), (late, "wait(bar, 0);")):
        with pytest.raises(EmulatorError) as caught:
            launch(arrive, wait)
        assert caught.value.kind in (FaultKind.CP_ASYNC_NOT_WAITED, FaultKind.DATA_RACE, FaultKind.UNINITIALISED_READ)
    with pytest.raises(EmulatorError, match="32 of 32 arrivals"):
        launch(counted, "wait(bar, 0);")


ONE_WAY = """extern "C" __global__ void f(int* out) {
  __shared__ int box[32]; const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) { box[lane] = lane; FIRST AFTER }
  else { SECOND out[lane] = box[31 - lane]; }
}"""


def test_bar_arrive_synchronises_one_way(compile_hopper: Callable[[str], str]) -> None:
    """Writes before bar.arrive are visible after bar.sync; writes after it are races."""
    out = np.zeros(32, np.int32)

    def launch(first: str, after: str, second: str) -> None:
        text = ONE_WAY.replace("FIRST", first).replace("AFTER", after).replace("SECOND", second)
        Emulator(compile_hopper(text)).launch(1, 64, [out], races=True)

    launch("bar_arrive(1, 64);", "", "bar_sync(1, 64);")
    np.testing.assert_array_equal(out, np.arange(31, -1, -1))
    launch("bar_sync(1, 64);", "", "bar_sync(1, 64);")
    for first, after, second in (
        ("bar_arrive(1, 64);", "box[lane] = 7;", "bar_sync(1, 64);"),
        ("bar_sync(1, 64);", "", "bar_arrive(1, 64);"),
    ):
        with pytest.raises(EmulatorError) as caught:
            launch(first, after, second)
        assert caught.value.kind in (FaultKind.DATA_RACE, FaultKind.UNINITIALISED_READ)


REGISTERS = """extern "C" __global__ void __launch_bounds__(256) MAXNREG f(int* out) {
  if (threadIdx.x < 128) { FIRST } else { SECOND }
  out[threadIdx.x] = (int)threadIdx.x;
}"""
DEC = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 {};");'
INC = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 {};");'


@pytest.mark.parametrize(
    ("first", "second", "given", "kind", "said"),
    [
        (DEC.format(24), INC.format(232), None, None, ""),
        (INC.format(232), DEC.format(24), None, None, ""),
        (DEC.format(32), INC.format(232), None, FaultKind.BARRIER_DEADLOCK, "12288 registers are free"),
        (DEC.format(24), INC.format(240), None, FaultKind.BARRIER_DEADLOCK, "setmaxnreg.inc to 240"),
        (DEC.format(24), INC.format(240), 136, None, ""),
        ("", INC.format(136), None, FaultKind.BARRIER_DEADLOCK, "0 registers are free"),
        (INC.format(120), "", None, FaultKind.ILLEGAL_VALUE, "inc to 120 registers by a warp that has 128"),
        (DEC.format(136), "", None, FaultKind.ILLEGAL_VALUE, "dec to 136 registers by a warp that has 128"),
        ("if (threadIdx.x < 32) " + DEC.format(24), "", None, FaultKind.WARP_DIVERGENCE, "this warp of the warpgroup"),
    ],
)
def test_setmaxnreg(
    compile_hopper: Callable[[str], str],
    first: str,
    second: str,
    given: int | None,
    kind: FaultKind | None,
    said: str,
) -> None:
    text = REGISTERS.replace("MAXNREG", "__maxnreg__(128)").replace("__launch_bounds__(256)", "")
    ptx = compile_hopper(text.replace("FIRST", first).replace("SECOND", second))
    emulator = Emulator(ptx, registers=given)
    out = np.zeros(256, np.int32)
    if kind is None:
        emulator.launch(1, 256, [out])
        np.testing.assert_array_equal(out, np.arange(256))
        return
    with pytest.raises(EmulatorError, match=said) as caught:
        emulator.launch(1, 256, [out])
    assert caught.value.kind is kind


@pytest.mark.parametrize("count", [16, 100, 264])
def test_register_counts_that_do_not_exist(compile_hopper: Callable[[str], str], count: int) -> None:
    text = REGISTERS.replace("MAXNREG", "").replace("FIRST", DEC.format(24)).replace("SECOND", "")
    ptx = compile_hopper(text).replace("u32 24;", f"u32 {count};")
    with pytest.raises(EmulatorError, match="24 to 256"):
        Emulator(ptx).check()


ONCE = """u32 once; asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
  "selp.u32 %0, 1, 0, p; }" : "=r"(once) : "r"(full), "r"(r & 1) : "memory");"""


def test_the_result_of_a_wait_that_may_give_up_must_decide_something(compile_hopper: Callable[[str], str]) -> None:
    exchange(compile_hopper, RECEIVE_WAIT=ONCE + " if (!once) wait(full, r & 1);")
    for ignored in (ONCE, ONCE + " once += lane;", ONCE.replace("selp.u32 %0, 1, 0, p;", "mov.u32 %0, 7;")):
        with pytest.raises(EmulatorError, match="repeat") as caught:
            exchange(compile_hopper, RECEIVE_WAIT=ignored)
        assert "mbarrier.try_wait" in caught.value.fault.ptx_text


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    ("step", "bar", "parity", "kind"),
    [
        ("RECEIVE_WAIT", "full", "r & 1", FaultKind.DATA_RACE),
        ("SEND_WAIT", "empty", "~r & 1", FaultKind.BARRIER_DEADLOCK),  # it runs ahead by two phases
    ],
)
def test_a_wait_gives_up_once_before_the_phase_is_complete(
    compile_hopper: Callable[[str], str], step: str, bar: str, parity: str, kind: FaultKind, asynchrony: Asynchrony
) -> None:
    once = ONCE.replace("(full)", f"({bar})").replace("(r & 1)", f"({parity})")
    exchange(compile_hopper, asynchrony, **{step: once + f" while (!once) {{ {once.replace('u32 once;', '')} }}"})
    with pytest.raises(EmulatorError) as caught:
        exchange(compile_hopper, asynchrony, **{step: once + " if (!once) __nanosleep(20);"})
    assert caught.value.kind is kind


DROP = """
extern "C" __global__ void k(int* out) {
  __shared__ __align__(8) u64 bar; __shared__ int box[32];
  const u32 at = shared_address(&bar); const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init(at, 64);
  __syncthreads();
  if (threadIdx.x >= 32) {
    box[lane] = 3 * lane;
    u64 token; asm volatile("mbarrier.LEAVE.shared::cta.b64 %0, [%1]COUNT;" : "=l"(token) : "r"(at) : "memory");
    return;
  }
  arrive(at); wait(at, 0);
  out[lane] = box[lane];
  arrive(at); wait(at, 1);  // of the first warp alone
  out[lane] += box[31 - lane];
}
"""


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    ("leave", "count", "kind", "said"),
    [
        ("arrive_drop", "", None, ""),
        ("arrive_drop", ", 1", None, ""),
        ("arrive_drop.release.cta", "", None, ""),
        ("arrive", "", FaultKind.BARRIER_DEADLOCK, "32 of 64 arrivals"),
        ("arrive_drop", ", 3", FaultKind.ILLEGAL_VALUE, "more arrivals than the mbarrier expects"),
        ("arrive.noComplete", ", 2", FaultKind.ILLEGAL_VALUE, "noComplete completes the phase"),
    ],
)
def test_threads_that_leave_an_mbarrier(
    compile_hopper: Callable[[str], str],
    leave: str,
    count: str,
    kind: FaultKind | None,
    said: str,
    asynchrony: Asynchrony,
) -> None:
    emulator = Emulator(compile_hopper(DROP.replace("LEAVE", leave).replace("COUNT", count)))
    out = np.zeros(32, np.int32)
    if kind is None:
        emulator.launch(1, 64, [out], races=True, lanes=True, asynchrony=asynchrony)
        np.testing.assert_array_equal(out, 3 * 31)
        return
    with pytest.raises(EmulatorError, match=said) as caught:
        emulator.launch(1, 64, [out], races=True, asynchrony=asynchrony)
    assert caught.value.kind is kind
