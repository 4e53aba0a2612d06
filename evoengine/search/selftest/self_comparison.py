"""What the outcomes of a self-test say: which mutants the gate killed, and which honest kernels it refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.selftest.selftest import SelftestResult, SelftestVerdict


@dataclass(frozen=True)
class Score:
    """Outcomes of mutants and of honest candidates."""

    mutants: tuple[tuple[Mutant, SelftestResult], ...]
    controls: tuple[SelftestResult, ...]
    predicted: bool
    """Whether they ran on the emulator, which sees every hazard; a GPU may run one to the right numbers."""

    @property
    def killed(self) -> tuple[Mutant, ...]:
        """Mutants that the gate rejected."""
        return self._with(SelftestVerdict.REJECTED)

    @property
    def unseen(self) -> tuple[Mutant, ...]:
        """Hazards that this GPU ran to the right numbers: they are not in the kill rate."""
        return () if self.predicted else tuple(mutant for mutant in self._with(SelftestVerdict.PASSED) if mutant.hazard)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Mutants that the gate should have rejected, and passed."""
        return tuple(mutant for mutant in self._with(SelftestVerdict.PASSED) if mutant not in self.unseen)

    @property
    def defects(self) -> tuple[Mutant, ...]:
        """Mutants that could not be made: neither killed nor alive."""
        return self._with(SelftestVerdict.DEFECT)

    @property
    def rejected(self) -> tuple[SelftestResult, ...]:
        """Honest candidates that the gate refused."""
        return tuple(outcome for outcome in self.controls if outcome.verdict is not SelftestVerdict.PASSED)

    @property
    def kill_rate(self) -> float | None:
        """Share of the mutants that could be seen and made; None where there were none."""
        seen = len(self.killed) + len(self.survivors)
        return len(self.killed) / seen if seen else None

    @property
    def false_rejection_rate(self) -> float | None:
        """Share of the honest candidates that were refused; None where there were none."""
        return len(self.rejected) / len(self.controls) if self.controls else None

    @property
    def passed(self) -> bool:
        """Whether the gate did all that it must."""
        return not (self.survivors or self.defects or self.rejected)

    def _with(self, fate: SelftestVerdict) -> tuple[Mutant, ...]:
        return tuple(mutant for mutant, outcome in self.mutants if outcome.verdict is fate)


def score(mutants: Sequence[Mutant], outcomes: Sequence[SelftestResult], *, predicted: bool) -> Score:
    """Brings together mutants and outcomes; those without edits are honest ones.

    Args:
        mutants: what was asked for; the score keeps their order.
        outcomes: one of each, and those of honest candidates.
        predicted: whether they ran on the emulator.
    """
    of_mutants = {outcome.trial.name: outcome for outcome in outcomes if outcome.trial.edits}
    honest = tuple(outcome for outcome in outcomes if not outcome.trial.edits)
    return Score(tuple((mutant, of_mutants[mutant.name]) for mutant in mutants), honest, predicted)
