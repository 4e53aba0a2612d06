"""Peers on CPU tensors that fail in every way, and the platform that times them; imported by worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evoengine.bench.compare_job import PeerCheck
from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, upload
from evoengine.bench.peer_registry import select_peers
from evoengine.device.protocols import StopwatchOptions, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.parity.compare import judge
from evoengine.parity.inputs.case import ParityCase

FAULT = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"


def right() -> float:
    return 1.0


_PREPARED: list[str] = []
"""Peers that were prepared in this process."""


def _beside() -> bool:
    """Whether another peer was prepared in this process too."""
    return len(set(_PREPARED)) > 1


class ProcessWatch:
    """A stopwatch whose samples are the number of its process, which shows where they were taken."""

    def __init__(self, call: PeerCall) -> None:
        self._call = call

    def sample_us(self) -> float:
        self._call()
        return float(os.getpid())

    def output(self) -> PeerOutput:
        return self._call()

    def close(self) -> None:
        pass


class CpuPlatform:
    def upload(self, inputs: AttentionInputs) -> PeerInputs:
        return upload(inputs, "cpu")

    def stopwatch(self, call: PeerCall, options: StopwatchOptions) -> ProcessWatch:
        return ProcessWatch(call)

    def synchronize(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class Check:
    case: ParityCase

    def __call__(self, output: AttentionOutput) -> PeerCheck:
        result = judge(self.case, output)
        return PeerCheck(result.max_error, result.reason)


@dataclass(frozen=True)
class Hostile:
    """SDPA with a function that is called when it is prepared and another one at every call."""

    name: str
    at_prepare: Callable[[], object] = bool
    at_call: Callable[[], object] = bool
    factor: Callable[[], float] = right
    note: Callable[[], str] = str

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        _PREPARED.append(self.name)
        self.at_prepare()
        (sdpa,) = select_peers("sdpa")
        call = sdpa.prepare(inputs)

        def run() -> PeerOutput:
            self.at_call()
            return PeerOutput(call().o * self.factor())

        return PeerCall(run, self.note())


class Tuned(Hostile):
    """Aborts where it is tuned a second time."""

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        if _PREPARED:
            os.abort()
        call = super().prepare(inputs)
        return PeerCall(call.run, "best of 9", tuned="5")

    def prepare_tuned(self, inputs: PeerInputs, tuned: str) -> PeerCall:
        assert tuned == "5"
        return super().prepare(inputs)


def raise_error() -> None:
    raise KeyError("a wheel\ncame off")


def exit_at_import() -> None:
    sys.exit(3)


def exit_at_once() -> None:
    os._exit(3)


def abort_with_reason() -> None:
    os.write(2, b"\n*** assertion of a driver failed ***\n\n")
    os.abort()


def sleep_long() -> None:
    time.sleep(600)


def allocate_wildly() -> None:
    bytearray(1 << 60)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def chatter() -> None:
    print("AUTOTUNE flex_attention(1x2x40x32)")
    os.write(2, b"AUTOTUNE by a compiler\n")
    subprocess.run(["echo", "AUTOTUNE by a child"], check=True)


def fault_beside() -> None:
    if _beside():
        raise RuntimeError(FAULT)


def abort_beside() -> None:
    if _beside():
        os.abort()


def sleep_in_samples() -> None:
    if _is_sampled():
        time.sleep(600)


def abort_in_samples() -> None:
    if _is_sampled():
        os.abort()


def _is_sampled() -> bool:
    """Whether the kernel is called by the interleaved timing, which a process with one kernel alone never reaches."""
    return any(frame.name == "sample_interleaved" for frame in traceback.extract_stack())


def wrong() -> float:
    return 1.01


def wrong_beside() -> float:
    return 1.01 if _beside() else 1.0


def process_settings() -> str:
    score = Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip()
    return f"{score} {os.environ['TORCHINDUCTOR_CACHE_DIR']}"


def refuse_with_settings() -> TimedKernel:
    raise LaunchError(process_settings())


def abort_when_loaded() -> TimedKernel:
    os.abort()
