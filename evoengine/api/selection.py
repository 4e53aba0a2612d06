"""From a problem to the kernel that serves it: the champion, else the nearest elite that is valid, else nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.api.nearest import by_distance
from evoengine.api.rows import KernelRow, runs_on
from evoengine.errors import CandidateError, EvoEngineError, LockMismatchError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space, parse_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

MOST_TRIED: Final = 8
"""Elites that are looked at before torch serves."""

Trial = Callable[["Selection"], str]
"""Runs a kernel that no gate has seen for this problem; says what is wrong with it, empty when nothing."""


@dataclass(frozen=True)
class Selection:
    """A kernel that serves a problem."""

    row: KernelRow
    """Where its config comes from."""
    kernel: Kernel
    """Rendered for the problem, compiled for the GPU."""
    exact: bool
    """It was searched for, checked and timed on this very problem, and is the same text and machine code."""
    notes: tuple[str, ...] = ()
    """Why better-placed rows do not serve."""


@dataclass(frozen=True)
class NoSelection:
    """Nobody serves, and why."""

    reasons: tuple[str, ...]


class Selector:
    """Chooses among the rows of one source for one GPU.

    Args:
        gpu: name as the driver gives it.
        target: its limits; its architecture is compiled for.
        rows: what there is to choose from.
        locked: the rows come from a lockfile: a difference is an error.
    """

    def __init__(self, gpu: str, target: Target, rows: Sequence[KernelRow], *, locked: bool = False) -> None:
        self._rows = [row for row in rows if runs_on(row, gpu, target.arch)]
        self._gpu = gpu
        self._target = target
        self._locked = locked
        self._compiler = Compiler(default_cache_dir())
        self._library = TemplateLibrary(data_dir("templates"))

    def knows(self, problem: Problem) -> bool:
        """Whether a row was searched for this very problem."""
        return any(row.problem.key == problem.key for row in self._rows)

    def select(
        self,
        problem: Problem,
        *,
        even_if_slower: bool = False,
        like: Problem | None = None,
        trial: Trial | None = None,
    ) -> Selection | NoSelection:
        """The kernel for a problem.

        Args:
            problem: what is to be computed.
            even_if_slower: take a kernel although torch's own attention was faster beside it.
            like: a problem of about the same sizes to choose for, so that all that are like it get one kernel.
            trial: see :data:`Trial`; None where nothing can run here.

        Raises:
            LockMismatchError: the rows are locked, and the problem's own does not build to what was locked.
        """
        if not self._rows:
            return NoSelection((f"no kernel was measured on {self._gpu}",))
        notes: list[str] = []
        for row in by_distance(like or problem, self._rows)[:MOST_TRIED]:
            own = row.problem.key == problem.key
            if row.speedup is not None and row.speedup < 1 and not even_if_slower:
                notes.append(f"{_name(row)} is slower than {row.baseline} was beside it")
                if own:
                    break
                continue
            found = self._build(row, like or problem, own, trial)
            if isinstance(found, Selection):
                return Selection(found.row, found.kernel, found.exact, (*notes, *found.notes))
            notes.append(f"{_name(row)}: {found}")
        return NoSelection(tuple(notes))

    def _build(self, row: KernelRow, problem: Problem, own: bool, trial: Trial | None) -> Selection | str:
        try:
            source = self._rendered(row, problem)
            if isinstance(source, str):
                return self._objection(source, locked=self._locked and own, row=row)
            if self._locked and own and source.source_hash != row.source_hash:
                raise _mismatch(row, f"template {row.template_hash} has become {source.template_hash}")
            binary = self._compiler.compile(source, row.arch)
        except CandidateError as error:
            return self._objection(str(error), locked=self._locked and own, row=row)
        if self._locked and own and binary.code_hash != row.code_hash:
            raise _mismatch(row, f"machine code {row.code_hash} (NVRTC {row.nvrtc}) has become {binary.code_hash}")
        kernel = Kernel(source, binary)
        reason = resource_gate(binary, source.launch.plan(problem), self._target)
        if reason is not None:
            return reason
        same = (source.source_hash, binary.code_hash) == (row.source_hash, row.code_hash)
        selection = Selection(row, kernel, own and same)
        if selection.exact or trial is None:
            return selection
        wrong = trial(selection)
        return f"is wrong for this problem: {wrong}" if wrong else selection

    def _rendered(self, row: KernelRow, problem: Problem) -> Source | str:
        """The source, or why the config cannot serve the problem."""
        try:
            template, space = self._library.load(row.config.family), _space_of(row)
            objection = template.supports(problem, self._target.arch)
            if objection is not None:
                return objection
            target = self._target.compiled_for(row.arch)
            violated = space.check(row.config.as_dict(), problem, target)
            if violated:
                return violated[0].reason
            return template.render(row.config, problem, space, target)
        except CandidateError:
            raise
        except EvoEngineError as error:  # a family or a tunable that is no more
            return str(error)

    @staticmethod
    def _objection(text: str, *, locked: bool, row: KernelRow) -> str:
        if locked:
            raise _mismatch(row, text)
        return text


def _space_of(row: KernelRow) -> SearchSpace:
    if not row.space:
        return find_space(row.config.family)
    return parse_space(row.space, f"the search space of row {row.row_id}")


def _mismatch(row: KernelRow, what: str) -> LockMismatchError:
    return LockMismatchError(
        f"the lockfile's kernel for {row.problem.key} on {row.gpu} is not what is built here: {what}: "
        "install what the lockfile was written with, or run 'evoengine lock' again and share the new file"
    )


def _name(row: KernelRow) -> str:
    kind = "champion" if row.champion else "elite"
    return f"{kind} {row.row_id} of {row.problem.key}"
