"""What is kept of an examination for its controls: was the kernel launched, and is its output somebody else's?"""

from __future__ import annotations

from dataclasses import dataclass, field

from evoengine.device.protocols import KernelStopwatch, LoadedKernel, PredictedKernel
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.records import LaunchSpec
from evoengine.parity.controls.launch_count import launch_objection
from evoengine.parity.float_bits import same_bits
from evoengine.parity.inputs.case import ParityCase


@dataclass
class ExaminationRecorder:
    """Looks on while a kernel is judged and timed.

    Args:
        case: the problem on the inputs that are timed.
        fresh: inputs of the problem that nothing was timed on.
    """

    case: ParityCase
    fresh: AttentionInputs
    replays: list[AttentionOutput] = field(default_factory=list)
    """What the timed calls made of the fresh inputs."""
    _output: AttentionOutput | None = None
    _launched: tuple[str, ...] | None = None

    def saw(self, case: ParityCase, output: AttentionOutput) -> None:
        """A case of the gate ran."""
        if case is self.case:
            self._output = output

    def timed(self, watch: KernelStopwatch) -> None:
        """The last sample was taken."""
        self._launched = watch.launched
        self.replays.append(watch.replay(self.fresh))

    def launch_objection(self, loaded: LoadedKernel, spec: LaunchSpec, calls: int) -> str:
        """What was launched besides the entries of a call, or instead of them; empty when nothing.

        Args:
            loaded: the kernel; where it is predicted, its latest call counts.
            spec: what a call consists of.
            calls: those that are timed.
        """
        if isinstance(loaded, PredictedKernel):
            return launch_objection(loaded.launched, spec, self.case.inputs.problem)
        return launch_objection(self._launched or (), spec, self.fresh.problem, calls)

    def notes(self, baseline: tuple[str, AttentionOutput] | None) -> tuple[str, ...]:
        """What deserves a second look: an output that is SDPA's bit for bit, which two algorithms hardly give.

        Args:
            baseline: the fastest SDPA backend and its output where times are measured; None takes SDPA on the CPU.
        """
        output = self._output
        if output is None:
            return ()
        if baseline is None:
            name, same = "SDPA's on the CPU", self.case.matches_sdpa(output)
        else:
            name, same = f"that of the SDPA backend '{baseline[0]}'", same_bits(output.o, baseline[1].o)
        return (f"its output on the timed inputs is {name}, bit for bit",) if same else ()
