"""Record of an examination for its controls: launches, the output of timed calls, and a match with SDPA's output."""

from __future__ import annotations

from dataclasses import dataclass, field

from evoengine.device.protocols import KernelStopwatch, LoadedKernel, PredictedKernel
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.records import LaunchSpec
from evoengine.parity.compare import bit_difference
from evoengine.parity.controls.launch_count import launch_objection
from evoengine.parity.float_bits import same_bits
from evoengine.parity.inputs.case import ParityCase


@dataclass
class ExaminationRecorder:
    """Keeps what the controls need while a kernel is checked and timed.

    Args:
        case: The problem on the inputs that are timed.
        fresh: Inputs of the problem that nothing was timed on.
    """

    case: ParityCase
    fresh: AttentionInputs
    replays: list[AttentionOutput] = field(default_factory=list)
    """Outputs of the timed calls on the fresh inputs."""
    _output: AttentionOutput | None = None
    _latest: tuple[ParityCase, AttentionOutput] | None = None
    _launched: tuple[str, ...] = ()
    _calls: int = 1
    _expected: AttentionOutput | None = None

    def saw(self, case: ParityCase, output: AttentionOutput) -> None:
        """Records the output of a case of the gate."""
        self._latest = case, output
        if case is self.case:
            self._output = output

    @property
    def before(self) -> AttentionOutput | None:
        """Output of the gate's last case, if it has the shape of the fresh inputs' output."""
        if self._latest is None:
            return None
        case, output = self._latest
        same = (case.inputs.problem, case.inputs.layout) == (self.fresh.problem, self.fresh.layout)
        return output if same else None

    def timed(self, watch: KernelStopwatch) -> None:
        """Records calls and launches of the stopwatch after the last sample, and replays it on the fresh inputs."""
        self._launched, self._calls, self._expected = watch.launched, watch.calls, watch.expected
        self.replays.append(watch.replay(self.fresh))

    def output_objection(self) -> str:
        """Returns how the output by which timed calls were judged differs from the gate's; empty if it does not."""
        if self._output is None or self._expected is None:
            return ""
        wrong = bit_difference(self._output, self._expected)
        return f"the first of the timed calls, {wrong}" if wrong else ""

    def launch_objection(self, loaded: LoadedKernel, spec: LaunchSpec) -> str:
        """Returns which launches differ from the entries of the timed calls; empty when none does.

        Args:
            loaded: Kernel; for a predicted one, the launches of its latest call are compared.
            spec: Entries of one call.
        """
        if isinstance(loaded, PredictedKernel):
            return launch_objection(loaded.launched, spec, self.case.inputs.problem)
        return launch_objection(self._launched, spec, self.fresh.problem, self._calls)

    def notes(self, baseline: tuple[str, AttentionOutput] | None) -> tuple[str, ...]:
        """Returns a note when the output equals SDPA's bit for bit, which two algorithms hardly ever produce.

        Args:
            baseline: Fastest SDPA backend and its output, where times are measured; None compares with SDPA on the CPU.
        """
        output = self._output
        if output is None:
            return ()
        if baseline is None:
            name, same = "SDPA's on the CPU", self.case.matches_sdpa(output)
        else:
            name, same = f"that of the SDPA backend '{baseline[0]}'", same_bits(output.o, baseline[1].o)
        return (f"its output on the timed inputs is {name}, bit for bit",) if same else ()
