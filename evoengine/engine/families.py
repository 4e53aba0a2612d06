"""The kernel families of a search: those requested that support its problem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.errors import ProblemError, SearchSpaceError, UsageError
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Variant, Workload, is_variant
from evoengine.space.data_dirs import data_dirs, own_family_hint, packaged_dir, user_dir
from evoengine.space.loader import family_names, find_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

AUTO: Final = "auto"
"""Name that stands for all families."""


@dataclass(frozen=True)
class Family:
    """One family of a search."""

    space: SearchSpace
    template_hash: str
    valid: ValidSpace
    variant: Variant | None = None
    """Patch of the template and the space; None for the family's own."""

    @property
    def name(self) -> str:
        return self.space.family

    @property
    def key(self) -> str:
        """Key of template and space: it changes whenever a config stands for another kernel."""
        space = self.space
        facts = repr((self.template_hash, space.tunables, space.derived, space.constraints))
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LeftOut:
    """A requested family that does not support the problem."""

    name: str
    reason: str


@dataclass(frozen=True)
class Families:
    """The families of a search, sorted by name."""

    taken: tuple[Family, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def name(self) -> str:
        """Comma-separated names."""
        return ",".join(family.name for family in self.taken)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that are variants."""
        return tuple(family.variant for family in self.taken if family.variant is not None)

    @property
    def key(self) -> str:
        """Key of all templates and spaces; for one family its own key."""
        if len(self.taken) == 1:
            return self.taken[0].key
        return hashlib.sha256(repr([(family.name, family.key) for family in self.taken]).encode()).hexdigest()[:16]


def serving_all(families: Families, workload: Workload, target: Target) -> Families:
    """Selects the families that support all problems of a workload.

    Args:
        families: Families that support the first problem.
        workload: Problems.
        target: GPU, with the architecture to compile for.

    Raises:
        ProblemError: No family does; the message has the reason of each.
    """
    library = TemplateLibrary(*data_dirs("templates"), variants=families.variants)
    taken, left_out = [], list(families.left_out)
    for family in families.taken:
        template = library.load(family.name)
        objections = (template.supports(problem, target.arch) for problem in workload.problems[1:])
        objection = next(filter(None, objections), None)
        if objection is None:
            taken.append(family)
        else:
            left_out.append(LeftOut(family.name, objection))
    if not taken:
        raise _unsupported(workload.problems, left_out)
    return Families(tuple(taken), tuple(left_out))


def wanted_spaces(names: str, file: Path | None, variants: Sequence[Variant] = ()) -> tuple[SearchSpace, ...]:
    """Loads the search spaces of ``--family`` and ``--space``, sorted by family.

    Args:
        names: ``auto``, one family, or comma-separated families.
        file: Search-space file, which names its family; None for the shipped ones.
        variants: Variants that may be named; ``auto`` does not stand for them.

    Raises:
        UsageError: A family is unknown, or the file belongs to another family.
        SearchSpaceError: A file is malformed.
    """
    if file is not None:
        space = find_space(str(file))
        if names not in (AUTO, space.family):
            raise UsageError(f"{file} is a space of family {space.family}, not of '{names}': leave --family out")
        return (space,)
    known = family_names()
    wanted = set(known) if names == AUTO else {name.strip() for name in names.split(",")}
    patched = {variant.name for variant in variants}
    for name in sorted(wanted - patched):
        if is_variant(name):
            raise UsageError(f"unknown variant '{name}': 'lineage' lists those of --db, and --variants runs them")
        if name not in known and not name.endswith(".toml"):
            choices = f"choose auto, or some of {', '.join(known)}, as in mma,wmma"
            raise UsageError(f"unknown family '{name}': {choices}{own_family_hint()}")
    return tuple(sorted((find_space(name, variants) for name in wanted), key=lambda space: space.family))


def own_spaces(families: Families) -> tuple[tuple[str, str], ...]:
    """Name and text of each search space that is not a shipped one."""
    shipped = [folder.resolve() for folder in data_dirs("search_spaces")]
    own = [family for family in families.taken if family.space.file and family.variant is None]
    files = {family.name: Path(family.space.file) for family in own}
    return tuple(
        (name, file.read_text("utf-8")) for name, file in files.items() if file.resolve().parent not in shipped
    )


def overlaid(families: Families) -> Iterator[str]:
    """Yields a line for each family with files in the user's data folder, and whether they replace shipped ones."""
    folder = user_dir()
    for family in families.taken if folder is not None else ():
        assert folder is not None
        if family.variant is not None:
            continue
        name, space_file = family.name, Path(family.space.file).resolve()
        found = [("template", folder / "templates" / name, packaged_dir("templates") / name)]
        if space_file.parent == folder / "search_spaces":
            found.append(("search space", space_file, packaged_dir("search_spaces") / space_file.name))
        found = [entry for entry in found if entry[1].exists()]
        if found:
            replaced = " instead of EvoEngine's" if any(shipped.exists() for _, _, shipped in found) else ""
            yield f"{' and '.join(what for what, _, _ in found)} of {name} from {folder}{replaced}"


def choose_families(
    spaces: tuple[SearchSpace, ...], problem: Problem, target: Target, variants: Sequence[Variant] = ()
) -> Families:
    """Builds the spaces of the families that support a problem.

    Args:
        spaces: Requested spaces.
        problem: Problem.
        target: GPU, with the architecture to compile for.
        variants: Variants that the spaces may belong to.

    Raises:
        ProblemError: No family does; the message has the reason of each.
        SearchSpaceError: The only space has no valid config, or cannot be evaluated.
        TemplateError: A template is malformed, or reads a name that its search space does not define.
    """
    library, patched = TemplateLibrary(*data_dirs("templates"), variants=variants), {one.name: one for one in variants}
    taken: list[Family] = []
    left_out: list[LeftOut] = []
    for space in spaces:
        template = library.load_for(space)
        objection = template.supports(problem, target.arch)
        if objection is not None:
            left_out.append(LeftOut(space.family, objection))
            continue
        try:
            valid = space.build(problem, target)
            taken.append(Family(space, template.template_hash, valid, patched.get(space.family)))
        except SearchSpaceError as error:
            if len(spaces) == 1 or error.key != "constraints":  # the file itself is wrong
                raise
            left_out.append(LeftOut(space.family, f"family {space.family}: {error.reason}"))
    if not taken:
        raise _unsupported((problem,), left_out)
    return Families(tuple(taken), tuple(left_out))


def _unsupported(problems: Sequence[Problem], left_out: Sequence[LeftOut]) -> ProblemError:
    """Returns the error of problems that no family supports; of an odd head_dim it says what to search instead."""
    odd = next((one.head_dim for one in problems if one.head_dim % 8), 0)
    if odd:
        padded = odd + -odd % 8
        return ProblemError(
            f"kernels read multiples of 8 columns, not a head_dim of {odd}: search head_dim {padded}, to which "
            "evoengine.attention pads Q, K and V with zeros"
        )
    return ProblemError("; ".join(entry.reason for entry in left_out))
