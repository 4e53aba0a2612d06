"""One study in the form in which the page shows it: texts, tables, plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from evoengine.model import Status, Value
from evoengine.report.command import search_command
from evoengine.report.counters import counters_note, counters_table
from evoengine.report.energy import energy_plot
from evoengine.report.fact_lists import champion_facts, environment_facts, summary_facts
from evoengine.report.facts import StudyFacts, rejections, status_counts
from evoengine.report.figure import Figure, Table
from evoengine.report.headline import Tile, kind_of, problem_words, tiles
from evoengine.report.influence import Influence, influences
from evoengine.report.outcomes import Bar, rejection_bars, status_bars
from evoengine.report.progress import best_so_far
from evoengine.report.roofline import peak_facts, roof_of, roofline
from evoengine.report.tables import elites_table, history_table, lineage_table, variants_table

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class StudyView:
    """Texts, tables and plots of one study, as the template reads them."""

    facts: StudyFacts
    program: str
    """Command that starts EvoEngine."""

    @cached_property
    def counts(self) -> Mapping[Status, int]:
        return status_counts(self.facts.rows)

    @property
    def title(self) -> str:
        return f"{self.facts.title}{' (predicted)' if self.facts.predicted else ''}"

    @property
    def kind(self) -> str:
        return kind_of(self.facts)

    @property
    def subtitle(self) -> str:
        """The problem in words; for a workload the number of its problems."""
        workload = self.facts.study.key.workload
        return problem_words(self.facts.problem) if workload is None else f"workload of {len(workload.parts)} problems"

    @property
    def label(self) -> str:
        """Name of the study in the chooser."""
        key = self.facts.study.key
        times = [row.median_us for row in self.facts.timed if row.median_us is not None]
        best = f"{min(times):.3f} {self.facts.unit}" if times else "no correct kernel"
        search = f"{best}, {key.strategy}, seed {key.seed}, {len(self.facts.rows)} candidates"
        return f"{self.facts.title}: {search} (study {self.facts.study.id})"

    @property
    def tiles(self) -> list[Tile]:
        return list(tiles(self.facts, self.counts))

    @property
    def summary(self) -> Pairs:
        return list(summary_facts(self.facts, self.counts))

    @property
    def champion(self) -> Pairs:
        """Facts about the champion; empty without one."""
        record = self.facts.champion
        return [] if record is None else list(champion_facts(record, self.facts))

    @property
    def config(self) -> list[tuple[str, Value]]:
        record = self.facts.champion
        return [] if record is None else list(record.row.config.items())

    @property
    def source(self) -> str:
        return "" if self.facts.champion is None else self.facts.champion.evaluation.source

    @property
    def history(self) -> Table:
        return history_table(self.facts)

    @property
    def refused(self) -> int:
        """Number of challenges that were lost."""
        return sum(not challenge.accepted for challenge in self.facts.challenges)

    @property
    def lineage(self) -> Table:
        return lineage_table(self.facts)

    @property
    def variants(self) -> Table:
        return variants_table(self.facts)

    @property
    def elites(self) -> Table:
        return elites_table(self.facts)

    @cached_property
    def families(self) -> list[Influence]:
        return influences(self.facts)

    @cached_property
    def progress(self) -> Figure | None:
        return best_so_far(self.facts)

    @cached_property
    def roofline(self) -> Figure | None:
        return roofline(self.facts)

    @property
    def peaks(self) -> Pairs:
        """Peaks of the roofline and their source."""
        roof = roof_of(self.facts)
        return [] if roof is None else list(peak_facts(roof))

    @cached_property
    def energy(self) -> Figure | None:
        return energy_plot(self.facts)

    @property
    def counters(self) -> Table:
        return counters_table(self.facts)

    @property
    def counted_by(self) -> str:
        return counters_note(self.facts)

    @property
    def statuses(self) -> list[Bar]:
        return list(status_bars(self.counts))

    @property
    def rejected(self) -> list[Bar]:
        return list(rejection_bars(rejections(self.facts.rows), len(self.facts.rows)))

    @property
    def environment(self) -> Pairs:
        return list(environment_facts(self.facts))

    @property
    def command(self) -> str:
        """Shell command that repeats the search."""
        distinct = sum(count for status, count in self.counts.items() if status is not Status.DUPLICATE)
        return search_command(self.facts.study, max(1, distinct), self.program)

    def figures(self) -> Iterator[Figure]:
        """Yields the plots."""
        yield from (figure for figure in (self.progress, self.roofline, self.energy) if figure is not None)
        yield from (figure for family in self.families for figure in family.figures)
