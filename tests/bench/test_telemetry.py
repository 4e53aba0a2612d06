"""Telemetry through an NVML library with recorded values, and the samples that are discarded because of it."""

from __future__ import annotations

import importlib.util
import itertools
import sys

import pytest

from evoengine.bench.energy import LOOP_S, energy_per_call_uj
from evoengine.bench.gpu_monitor import Monitor, open_monitor, probe_nvml
from evoengine.bench.racing import Race, RaceRule
from evoengine.bench.sampling import BLOCK, RETRIES, SampleSet, ThrottleHistory, take_samples
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import GpuReading
from tests.bench.fake_nvml import BUS, IDLE, POWER_CAP, SETTING, THERMAL, FakeNvml, NVMLError


def monitor_on(library: FakeNvml, patch: pytest.MonkeyPatch, bus: str = BUS) -> Monitor:
    patch.setitem(sys.modules, "pynvml", library)
    return open_monitor(bus)


class Watch:
    """A stopwatch with known times that writes its name to a log."""

    def __init__(self, log: list[str], name: str, times: tuple[float, ...]) -> None:
        self._log, self._name, self._times = log, name, itertools.cycle(times)

    def sample_us(self) -> float:
        self._log.append(self._name)
        return next(self._times)

    def close(self) -> None:
        pass


def test_a_reading_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([SETTING | POWER_CAP])
    monitor = monitor_on(library, monkeypatch)
    assert monitor.missing == ""
    reading = monitor.read()
    assert reading == GpuReading(1980, 3201, 41, 312.4, ("applications_clocks_setting", "sw_power_cap"))
    assert reading.throttled
    monitor.close()
    monitor.close()
    assert library.users == 0


@pytest.mark.parametrize(("bits", "throttled"), [(0, False), (IDLE, False), (IDLE | SETTING, False), (0x110, False)])
def test_a_gpu_that_is_idle_or_set_up_so_is_not_throttled(
    monkeypatch: pytest.MonkeyPatch, bits: int, throttled: bool
) -> None:
    assert monitor_on(FakeNvml([bits]), monkeypatch).throttled() is throttled


@pytest.mark.parametrize("bit", [POWER_CAP, 0x8, THERMAL, 0x40, 0x80])
def test_heat_and_power_are_throttling(monkeypatch: pytest.MonkeyPatch, bit: int) -> None:
    assert monitor_on(FakeNvml([bit | IDLE]), monkeypatch).throttled()


def test_values_that_the_driver_does_not_report_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on(FakeNvml([POWER_CAP], lacks=("power", "reasons", "energy")), monkeypatch)
    assert monitor.read() == GpuReading(1980, 3201, 41, None, ())
    assert monitor.energy_mj() is None
    assert not monitor.throttled()


def test_older_drivers_use_another_name_for_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    class OlderDriver(FakeNvml):
        """A module that has the new name, too, but a driver that has not."""

        def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
            raise NVMLError("Function Not Found")

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
            return THERMAL

    class OlderModule(OlderDriver):
        nvmlDeviceGetCurrentClocksEventReasons = None  # type: ignore[assignment]  # noqa: N815

    for library in (OlderDriver(), OlderModule()):
        monitor = monitor_on(library, monkeypatch)
        assert monitor.read().reasons == ("sw_thermal_slowdown",)
        assert monitor.throttled()


def test_a_monitor_without_a_gpu_states_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    missing = open_monitor(BUS)
    assert "nvidia-ml-py" in missing.missing
    assert (missing.read(), missing.throttled(), missing.energy_mj()) == (GpuReading(), False, None)
    assert not probe_nvml().ok
    forbidden = monitor_on(FakeNvml(fails="Insufficient Permissions"), monkeypatch)
    assert "Insufficient Permissions" in forbidden.missing
    assert "Insufficient Permissions" in probe_nvml().detail
    library = FakeNvml()
    other = monitor_on(library, monkeypatch, "0000:99:00.0")
    assert "0000:99:00.0" in other.missing
    mute = monitor_on(FakeNvml(lacks=("clock",)), monkeypatch)
    assert mute.missing.endswith("Not Supported")
    assert library.users == 0
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert probe_nvml().detail == "driver 580.95.05"


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_the_installed_library_has_the_functions_we_call() -> None:
    import pynvml

    asked = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in asked if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU) == (1, 2, 0)


# -- samples ----------------------------------------------------------------------------------------------------------


def sampled(
    patch: pytest.MonkeyPatch,
    reasons: list[int],
    samples: int = 30,
    us: float = 5.0,
    race: Race | None = None,
    retries: int = RETRIES,
) -> tuple[SampleSet, list[str]]:
    log: list[str] = []
    monitor = monitor_on(FakeNvml(reasons, log), patch)
    watches = [Watch(log, "own", (us,)), Watch(log, "baseline", (9.0,))]
    return take_samples(watches, samples, 2, monitor, race, retries), log


def test_no_query_stands_between_the_samples_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, log = sampled(monkeypatch, [0])
    assert [len(column) for column in taken.columns] == [30, 30]
    runs = [
        (kind, len(list(group))) for kind, group in itertools.groupby(log, lambda name: name in ("own", "baseline"))
    ]
    lengths = [length for is_sample, length in runs if is_sample]
    assert lengths == [2 * 2, 2 * BLOCK, 2 * BLOCK, 2 * BLOCK]
    between = [name for name in log[log.index("own") :] if name not in ("own", "baseline")]
    whole = ["power", "clock", "clock", "temperature", "reasons"]
    assert between == [*whole, "reasons", "reasons", "reasons", *whole], "everything at both ends, one query elsewhere"
    assert log[1:5] == ["own", "baseline", "baseline", "own"]
    assert taken.telemetry.before == taken.telemetry.after == GpuReading(1980, 3201, 41, 312.4)
    assert (taken.telemetry.discarded, taken.telemetry.throttled, taken.telemetry.missing) == (0, False, "")


def test_a_measurement_names_its_gpu_even_without_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    watches = [Watch([], "own", (5.0,))]
    for library in (FakeNvml(), FakeNvml(fails="Insufficient Permissions")):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        assert take_samples(watches, 6, 0, open_monitor(BUS, "GPU-a")).telemetry.gpu == "GPU-a"


def test_rounds_alternate_within_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = sampled(monkeypatch, [0], samples=4)
    assert [name for name in log if name in ("own", "baseline")][4:] == [
        *("own", "baseline", "baseline", "own"),
        *("own", "baseline", "baseline", "own"),
    ]


def test_samples_of_a_throttled_gpu_are_discarded_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading before the first block, then one query after each: the second block ends throttled."""
    taken, log = sampled(monkeypatch, [0, 0, POWER_CAP, 0])
    assert taken.telemetry.discarded == 2 * BLOCK, "the block before the query, and the one that it was before"
    assert not taken.telemetry.throttled
    assert [len(column) for column in taken.columns] == [30, 30]
    assert log.count("own") == 2 + 30 + 2 * BLOCK


def test_a_gpu_that_is_always_throttled_is_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, log = sampled(monkeypatch, [POWER_CAP])
    assert taken.telemetry.discarded == RETRIES * BLOCK
    assert taken.telemetry.throttled
    assert taken.telemetry.before.throttled
    assert taken.columns == ((5.0,) * 30, (9.0,) * 30)
    assert log.count("own") == 2 + 30 + RETRIES * BLOCK


def test_a_gpu_at_its_limit_gets_no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    history, discarded, throttled = ThrottleHistory(), [], []
    for reason in (POWER_CAP, POWER_CAP, 0, POWER_CAP):
        taken, _ = sampled(monkeypatch, [reason], retries=history.retries)
        history.observe(taken.telemetry)
        discarded.append(taken.telemetry.discarded)
        throttled.append(taken.telemetry.throttled)
    assert discarded == [RETRIES * BLOCK, 0, 0, RETRIES * BLOCK]
    assert throttled == [True, True, False, True]


def test_a_gpu_rests_only_if_load_lowers_its_clocks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {reason: sampled(monkeypatch, [reason], retries=0)[0].telemetry for reason in (0, POWER_CAP)}
    history = ThrottleHistory()
    found = []
    for reason, rested in [(0, False)] * 3 + [(POWER_CAP, False), (POWER_CAP, True), (0, False), (POWER_CAP, False)]:
        history.observe(taken[reason], rested=rested)
        found.append(history.limits)
    assert found == [False, False, False, True, True, False, True], "more than a fifth of the unrested ones"


def test_benign_reasons_discard_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, _ = sampled(monkeypatch, [IDLE | SETTING])
    assert (taken.telemetry.discarded, taken.telemetry.throttled) == (0, False)


def test_a_dropped_candidate_keeps_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(RaceRule(), 3.0, 9.0)
    taken, _ = sampled(monkeypatch, [0], us=5.0, race=race)
    assert taken.drop is not None
    assert taken.drop.samples == len(taken.columns[0]) == len(taken.columns[1]) == 8
    slow, _ = sampled(monkeypatch, [0, POWER_CAP, 0], us=5.0, race=race)
    assert slow.telemetry.discarded == 16, "discarded samples drop no candidate"
    assert slow.drop is not None
    near, _ = sampled(monkeypatch, [0], us=3.2, race=race)
    assert near.drop is None
    assert len(near.columns[0]) == 30


# -- energy -----------------------------------------------------------------------------------------------------------

WATTS, CALL_S, STEP_S = 350.0, 5e-6, 0.02


class Loop:
    """A GPU at constant power whose calls take 5 µs; its energy counter changes every 20 ms."""

    calls = 20
    launched: tuple[str, ...] = ()
    expected: AttentionOutput | None = None

    def __init__(self) -> None:
        self.now_s = 0.003

    def spin(self, replays: int) -> None:
        self.now_s += replays * self.calls * CALL_S

    def counter_mj(self) -> int:
        return 7_000_000 + int(self.now_s / STEP_S) * int(WATTS * STEP_S * 1e3)

    def sample_us(self) -> float:
        raise AssertionError("energy is not measured in samples")

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        raise AssertionError("nothing is looked at")

    def close(self) -> None:
        pass


def test_energy_is_power_times_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monitor = monitor_on(FakeNvml(energy_mj=loop.counter_mj), monkeypatch)
    energy_uj = energy_per_call_uj(loop, monitor, lambda: loop.now_s)
    assert energy_uj == pytest.approx(WATTS * CALL_S * 1e6, rel=0.05)
    assert LOOP_S < loop.now_s < 3 * LOOP_S


def test_without_a_counter_there_is_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monitor = monitor_on(FakeNvml(lacks=("energy",)), monkeypatch)
    assert energy_per_call_uj(loop, monitor, lambda: loop.now_s) is None
    stuck = monitor_on(FakeNvml(energy_mj=lambda: 5), monkeypatch)
    assert energy_per_call_uj(loop, stuck, lambda: loop.now_s) is None
