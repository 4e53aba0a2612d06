"""Score of a self-test: the mutants that the gate killed or passed, and the controls that it rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.selftest.selftest import SelftestResult, SelftestVerdict


@dataclass(frozen=True)
class Score:
    """Results of mutants and of control kernels."""

    mutants: tuple[tuple[Mutant, SelftestResult], ...]
    controls: tuple[SelftestResult, ...]
    predicted: bool
    """Whether they ran on the emulator, which detects every hazard; a GPU may run one with correct numbers."""

    @property
    def killed(self) -> tuple[Mutant, ...]:
        """Mutants that the gate rejected."""
        return self._with(SelftestVerdict.REJECTED)

    @property
    def unseen(self) -> tuple[Mutant, ...]:
        """Hazard mutants with correct numbers on this GPU, which are excluded from the kill rate."""
        return () if self.predicted else tuple(mutant for mutant in self._with(SelftestVerdict.PASSED) if mutant.hazard)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Mutants that the gate passed and should have rejected."""
        return tuple(mutant for mutant in self._with(SelftestVerdict.PASSED) if mutant not in self.unseen)

    @property
    def defects(self) -> tuple[Mutant, ...]:
        """Mutants that could not be built."""
        return self._with(SelftestVerdict.DEFECT)

    @property
    def rejected(self) -> tuple[SelftestResult, ...]:
        """Controls that the gate rejected."""
        return tuple(outcome for outcome in self.controls if outcome.verdict is not SelftestVerdict.PASSED)

    @property
    def kill_rate(self) -> float | None:
        """Share of killed mutants among those that were built and are detectable; None where there are none."""
        seen = len(self.killed) + len(self.survivors)
        return len(self.killed) / seen if seen else None

    @property
    def false_rejection_rate(self) -> float | None:
        """Share of rejected controls; None where there are none."""
        return len(self.rejected) / len(self.controls) if self.controls else None

    @property
    def passed(self) -> bool:
        """Whether every mutant was built and killed, and every control passed."""
        return not (self.survivors or self.defects or self.rejected)

    def _with(self, verdict: SelftestVerdict) -> tuple[Mutant, ...]:
        return tuple(mutant for mutant, outcome in self.mutants if outcome.verdict is verdict)


def score(mutants: Sequence[Mutant], outcomes: Sequence[SelftestResult], *, predicted: bool) -> Score:
    """Matches mutants with their results; results without edits are those of controls.

    Args:
        mutants: Mutants of the self-test; the score keeps their order.
        outcomes: Results of all mutants and controls.
        predicted: Whether they ran on the emulator.
    """
    of_mutants = {outcome.trial.name: outcome for outcome in outcomes if outcome.trial.edits}
    controls = tuple(outcome for outcome in outcomes if not outcome.trial.edits)
    return Score(tuple((mutant, of_mutants[mutant.name]) for mutant in mutants), controls, predicted)
