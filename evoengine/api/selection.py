"""Selection of the kernel for a problem: the champion, else the nearest elite, else none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from evoengine.api.rows import KernelRow, preference, runs_on
from evoengine.documents.escaping import printable
from evoengine.errors import CandidateError, EvoEngineError, LockMismatchError, UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, ProblemDistance
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import family_space, parse_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

MOST_TRIED: Final = 8
"""Maximum number of rows tried before torch computes the call."""

Trial = Callable[["Selection"], str]
"""Checks a kernel before its first use in this process; returns what is wrong, empty if nothing.

No selection skips it: nothing shows that a row was measured here, with this version's gate, or for these strides.
"""


@dataclass(frozen=True)
class Selection:
    """Kernel selected for a problem."""

    row: KernelRow
    """Row with its config."""
    kernel: Kernel
    """Kernel rendered for the problem and compiled for the GPU."""
    exact: bool
    """Whether it was searched, checked and timed for this problem, with the same source and machine code."""
    notes: tuple[str, ...] = ()
    """Why rows with a higher preference were rejected, and what was changed in the row's config."""

    @property
    def changed(self) -> bool:
        """Whether the kernel's config is another one than the row's, so that the row's time says nothing about it."""
        return self.kernel.source.config != self.row.config


@dataclass(frozen=True)
class NoSelection:
    """No kernel was selected, with the reasons."""

    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Refusal:
    """Why a row has no kernel for a problem."""

    reason: str
    repairable: bool = False
    """Whether its config is invalid for the problem, so that another one near it may do."""


class Selector:
    """Selects among the rows of one source for one GPU.

    Args:
        gpu: Name reported by the driver.
        target: Limits of the GPU, and the architecture for which kernels are compiled.
        rows: Available rows.
        locked: Whether the rows come from a lockfile, so that a different build is an error.
    """

    def __init__(self, gpu: str, target: Target, rows: Sequence[KernelRow], *, locked: bool = False) -> None:
        self._rows = [row for row in rows if runs_on(row, gpu, target.arch)]
        self._gpu = gpu
        self._target = target
        self._locked = locked
        self._compiler = Compiler(default_cache_dir())
        self._library = TemplateLibrary(*data_dirs("templates"))

    def knows(self, problem: Problem) -> bool:
        """Returns whether a row was searched for this problem."""
        return any(row.problem.key == problem.key for row in self._rows)

    def select(
        self,
        problem: Problem,
        *,
        even_if_slower: bool = False,
        like: Problem | None = None,
        trial: Trial | None = None,
    ) -> Selection | NoSelection:
        """Selects the kernel for a problem.

        Rows whose config is valid for the problem come first. If none yields a kernel and a slow one is accepted, the
        configs of the others are changed to the nearest valid ones, which were never timed.

        Args:
            problem: Problem of the call.
            even_if_slower: Whether to accept a kernel that was slower than torch.
            like: Problem with rounded sizes to select for, so that similar problems share one kernel.
            trial: Check before first use, see :data:`Trial`; None to skip it.

        Raises:
            LockMismatchError: The rows are locked, and the problem's own row yields another source or machine code.
        """
        if not self._rows:
            return NoSelection((f"no kernel was measured on {self._gpu}",))
        notes: list[str] = []
        invalid: list[KernelRow] = []
        for row in by_distance(like or problem, self._rows)[:MOST_TRIED]:
            own = row.problem.key == problem.key
            if row.speedup is not None and row.speedup < 1 and not even_if_slower:
                notes.append(f"{_name(row)} is slower than {printable(row.baseline)} in its benchmark")
                if own:
                    break
                continue
            found = self._build(row, like or problem, own, trial)
            if isinstance(found, Selection):
                return replace(found, notes=tuple(notes))
            notes.append(f"{_name(row)}: {found.reason}")
            if found.repairable:
                invalid.append(row)
        if not even_if_slower:
            return NoSelection(tuple(notes))
        return self._select_repaired(like or problem, invalid, notes, trial)

    def _select_repaired(
        self, problem: Problem, rows: Sequence[KernelRow], notes: Sequence[str], trial: Trial | None
    ) -> Selection | NoSelection:
        """Selects the first of some rows whose config, changed to the nearest one that is valid, yields a kernel."""
        notes = list(notes)
        for row in rows:
            found = self._build(row, problem, False, trial, repair=True)
            if isinstance(found, Selection):
                return replace(found, notes=(*notes, f"{_name(row)} serves with {_changes(row, found.kernel)}"))
            notes.append(f"{_name(row)}, changed to be valid: {found.reason}")
        return NoSelection(tuple(notes))

    def _build(
        self, row: KernelRow, problem: Problem, own: bool, trial: Trial | None, *, repair: bool = False
    ) -> Selection | _Refusal:
        try:
            source = self._rendered(row, problem, repair=repair)
            if isinstance(source, _Refusal):
                return self._objection(source, locked=self._locked and own, row=row)
            if self._locked and own and source.source_hash != row.source_hash:
                raise _mismatch(row, f"template {printable(row.template_hash)} is now {source.template_hash}")
            binary = self._compiler.compile(source, row.arch)
        except LockMismatchError:
            raise
        except (CandidateError, UsageError) as error:  # UsageError: NVRTC does not know the row's architecture
            return self._objection(_Refusal(str(error)), locked=self._locked and own, row=row)
        if self._locked and own and binary.code_hash != row.code_hash:
            before = printable(f"{row.code_hash} (NVRTC {row.nvrtc})")
            raise _mismatch(row, f"machine code {before} is now {binary.code_hash}")
        kernel = Kernel(source, binary)
        reason = resource_gate(binary, source.launch.plan(problem), self._target)
        if reason is not None:
            return _Refusal(reason)
        same = (source.source_hash, binary.code_hash) == (row.source_hash, row.code_hash)
        selection = Selection(row, kernel, own and same)
        if trial is None:
            return selection
        wrong = trial(selection)
        return _Refusal(f"is wrong for this problem: {wrong}") if wrong else selection

    def _rendered(self, row: KernelRow, problem: Problem, *, repair: bool) -> Source | _Refusal:
        """Returns the source, or why the config is invalid for the problem.

        Args:
            row: Row with its config.
            problem: Problem to render for.
            repair: Whether to render the nearest valid config instead.
        """
        try:
            template, space = self._library.load(row.config.family), _space_of(row)
            objection = template.supports(problem, self._target.arch)
            if objection is not None:
                return _Refusal(objection)
            target = self._target.compiled_for(row.arch)
            violated = space.check(row.config.as_dict(), problem, target)
            if violated and not repair:
                return _Refusal(violated[0].reason, repairable=not row.space)  # a stored space may be huge
            config = space.build(problem, target).repair(row.config.as_dict()) if violated else row.config
            return template.render(config, problem, space, target)
        except CandidateError:
            raise
        except EvoEngineError as error:  # an unknown family or tunable of an older version, or no valid config
            return _Refusal(str(error))

    @staticmethod
    def _objection(refusal: _Refusal, *, locked: bool, row: KernelRow) -> _Refusal:
        if locked:
            raise _mismatch(row, refusal.reason)
        return refusal


def _space_of(row: KernelRow) -> SearchSpace:
    if not row.space:
        return family_space(row.config.family)
    return parse_space(row.space, f"the search space of row {row.row_id}")


def _mismatch(row: KernelRow, what: str) -> LockMismatchError:
    return LockMismatchError(
        f"the lockfile's kernel for {row.problem.key} on {row.gpu} differs from the one built here: {what}: "
        "install the versions that wrote the lockfile, or run 'evoengine lock' again and share the new file"
    )


def _name(row: KernelRow) -> str:
    kind = "champion" if row.champion else "elite"
    return f"{kind} {row.row_id} of {row.problem.key}"


def _changes(row: KernelRow, kernel: Kernel) -> str:
    """Lists the values of a kernel's config that differ from the row's."""
    ours, theirs = kernel.source.config.as_dict(), row.config.as_dict()
    changed = [(name, value, theirs.get(name)) for name, value in ours.items() if value != theirs.get(name)]
    return ", ".join(f"{name} {value} instead of {other}" for name, value, other in changed)


def by_distance(problem: Problem, rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Sorts rows by the distance of their problems; rows of the problem itself come first.

    The order depends only on problems, times and ids, so it is the same on every host.
    """
    return sorted(
        rows, key=lambda row: (distance(problem, row.problem), preference(row), row.problem.key, row.config.key)
    )


def distance(a: Problem, b: Problem) -> float:
    """Returns the distance of two problems; 0 for equal ones.

    Sizes count by their binary logarithm. Properties that are compiled in have larger weights, because head_dim, masks
    and features change the balance of a kernel more than sizes do.
    """
    if a.key == b.key:
        return 0.0
    apart = ProblemDistance.of(a, b)
    compiled_in = 8.0 * apart.head_dim + 2.0 * apart.dtypes + 4.0 * apart.masks + 4.0 * apart.extras
    return 0.01 + apart.sizes + compiled_in
