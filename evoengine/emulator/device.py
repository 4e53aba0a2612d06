"""The emulator as a device: runs a binary's PTX, checks every access, and predicts its time on a target."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import fields, replace
from typing import Final

import numpy as np

from evoengine.emulator.emulator import Emulator
from evoengine.emulator.latency import METHOD, predict_us
from evoengine.emulator.memory import Buffer, GlobalMemory
from evoengine.emulator.report import LaunchReport
from evoengine.errors import LaunchError
from evoengine.kernel.abi import ENTRY, Placement, pack_params
from evoengine.kernel.artifact import Kernel, LaunchPlan
from evoengine.kernel.call import POISON_BITS, AttentionInputs, Bits, Prediction
from evoengine.model import DeviceInfo, Problem
from evoengine.target import Target

DEADLINE_S: Final = 60.0
"""One emulated launch may take this long."""

REPRESENTATIVE_FLOPS: Final = 6 * 10**8
"""A little more than the mission problem."""

RACE_CHECK_FLOPS: Final = 4 * 10**7
"""Problems up to this size, the small parity cases, also run with the race check, which takes a few times longer."""

_ROW_UNIT: Final = 256
"""Rows of a slice come in multiples of every query tile, so that its CTAs are as full as the problem's."""

MAX_REPORTS: Final = 64
"""Launches whose counters are kept; old ones are forgotten."""


_Reports = OrderedDict[tuple[str, Problem], LaunchReport]
"""Counters of past launches by machine code and shape, the latest last."""


class EmulatorDevice:
    """Executes PTX in NumPy and predicts for a GPU that need not be here.

    Args:
        target: the GPU to predict for.
        arch: architecture to compile for; None for the target's own.
        representative_flops: a problem of up to this size is run whole to be predicted; of a larger one, a slice.
    """

    def __init__(
        self, target: Target, arch: str | None = None, *, representative_flops: int = REPRESENTATIVE_FLOPS
    ) -> None:
        self._representative_flops = representative_flops
        self._target = target
        self._reports: _Reports = OrderedDict()
        self._info = DeviceInfo("emulator", target.marketing_name, arch or target.arch, predicted=True)

    @property
    def info(self) -> DeviceInfo:
        """The target's name, marked as predicted."""
        return self._info

    @property
    def target(self) -> Target:
        """The GPU that is predicted for."""
        return self._target

    @property
    def healthy(self) -> bool:
        """Always: a fault of a kernel is only an exception here."""
        return True

    def load(self, kernel: Kernel) -> EmulatedKernel:
        """Parses the PTX.

        Raises:
            LaunchError: the PTX has no kernel, or an instruction that the emulator does not know.
        """
        return EmulatedKernel(kernel, self._target, self._reports, self._representative_flops)

    def close(self) -> None:
        """Nothing to release."""


class EmulatedKernel:
    """A kernel that is ready to be emulated. Made by :meth:`EmulatorDevice.load`."""

    def __init__(self, kernel: Kernel, target: Target, reports: _Reports, representative_flops: int) -> None:
        self._representative_flops = representative_flops
        self._kernel = kernel
        self._target = target
        self._emulator = Emulator(kernel.binary.ptx, entry=ENTRY)
        self._reports = reports

    def attention(self, inputs: AttentionInputs) -> Bits:
        """Runs all CTAs once; see :class:`~evoengine.device.base.LoadedKernel`.

        The gaps between buffers belong to no buffer, so that any access outside one is an error at its instruction.
        """
        problem = inputs.problem
        memory = GlobalMemory()
        poison = np.full(int(np.prod(inputs.output_shape)), POISON_BITS, np.uint16)
        contents = {"q": inputs.q_memory, "k": inputs.k_memory, "v": inputs.v_memory, "o": poison}
        buffers = {name: memory.alloc(data, name=name.upper()) for name, data in contents.items()}

        def place(name: str) -> Placement:
            return Placement(buffers[name].address, inputs.q_strides if name in "qo" else inputs.kv_strides)

        params = pack_params(problem, place("q"), place("k"), place("v"), place("o"))
        plan = self._kernel.source.launch.plan(problem)
        report = self._emulator.launch(
            plan.grid,
            plan.threads,
            (params,),
            memory=memory,
            smem_bytes=plan.smem_bytes,
            deadline_s=DEADLINE_S,
            races=problem.flops <= RACE_CHECK_FLOPS,
        )
        self._remember(problem, report)
        for name in ("q", "k", "v"):
            _check_unchanged(memory, buffers[name], contents[name])
        return inputs.logical_output(memory.read(buffers["o"], np.uint16))

    def predict(self, problem: Problem) -> Prediction:
        """Predicts from the counters of a launch; see :class:`~evoengine.device.base.PredictedKernel`.

        The parity gate has mostly run the problem already, and its counters are used. Of a problem too large for that,
        a slice is run (one group of heads, then fewer rows, the same keys) and its counters are scaled by the work:
        CTAs of different heads execute the same instructions.
        """
        key = self._kernel.binary.code_hash
        report = self._reports.get((key, problem))
        if report is None:
            part = representative(problem, self._representative_flops)
            if (key, part) not in self._reports:
                self.attention(_zeros(part))
            report = _scaled(self._reports[key, part], problem, part, self._kernel.source.launch.plan(problem))
        resources = self._kernel.binary.resources
        estimate = predict_us(report, resources, self._target, unique_bytes=problem.min_bytes)
        if not math.isfinite(estimate.us):
            raise LaunchError(f"no CTA fits on an SM of {self._target.marketing_name}: {estimate.limiter}")
        return Prediction(estimate.us, METHOD, estimate.terms)

    def _remember(self, problem: Problem, report: LaunchReport) -> None:
        self._reports[self._kernel.binary.code_hash, problem] = report
        while len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)

    def close(self) -> None:
        """Nothing to release."""


def representative(problem: Problem, max_flops: int) -> Problem:
    """The problem, or a slice of one kv head's group that needs at most about ``max_flops``; the keys stay.

    With a bottom-right causal mask the rows that remain are the last ones, which see the most keys.
    """
    if 4 * problem.batch * problem.heads * problem.seq_q * problem.seq_kv * problem.head_dim <= max_flops:
        return problem
    heads = problem.heads // problem.kv_heads
    rows = max_flops // (4 * heads * problem.seq_kv * problem.head_dim)
    whole_tiles = max(1, rows // _ROW_UNIT) * _ROW_UNIT
    return replace(problem, batch=1, heads=heads, kv_heads=1, seq_q=min(problem.seq_q, whole_tiles))


def keys_per_row(problem: Problem) -> float:
    """Keys that a query row sees, on average."""
    if not problem.causal:
        return float(problem.seq_kv)
    first, last = max(1, problem.seq_kv - problem.seq_q + 1), problem.seq_kv  # seen by the first and the last live row
    return (first + last) * (last - first + 1) / 2 / problem.seq_q


def _scaled(report: LaunchReport, whole: Problem, part: Problem, plan: LaunchPlan) -> LaunchReport:
    """The counters of the whole problem from those of a part of it, by CTAs.

    Where rows were cut under a causal mask, those that remained see more keys than the average row; a kernel is taken
    to skip what is masked.
    """
    ctas = plan.grid[0] * plan.grid[1] * plan.grid[2]
    factor = ctas / report.ctas * keys_per_row(whole) / keys_per_row(part)
    counts = {
        field.name: round(getattr(report, field.name) * factor)
        for field in fields(report)
        if isinstance(getattr(report, field.name), int)
    }
    pipes = {pipe: round(count * factor) for pipe, count in report.pipes.items()}
    lines = {line: round(count * factor) for line, count in report.instructions_by_line.items()}
    warps = report.warps // report.ctas * ctas
    return replace(report, **counts | {"ctas": ctas, "warps": warps}, pipes=pipes, instructions_by_line=lines)


def _zeros(problem: Problem) -> AttentionInputs:
    """Inputs for a run of which only the counters matter."""
    q = np.zeros((problem.batch, problem.heads, problem.seq_q, problem.head_dim), np.uint16)
    kv = np.zeros((problem.batch, problem.kv_heads, problem.seq_kv, problem.head_dim), np.uint16)
    return AttentionInputs.of(problem, q, kv, kv)


def _check_unchanged(memory: GlobalMemory, buffer: Buffer, before: Bits) -> None:
    after = memory.read(buffer, np.uint16)
    changed = np.flatnonzero(after != before.reshape(-1))
    if changed.size:
        raise LaunchError(f"the kernel changed its input {buffer.name}, first at element {int(changed[0])}")
