"""Kernels of leaderboard rows: rendered and compiled again, or made ready for export.

A leaderboard may come from anyone, and a source is code. So a stored source is used only if this installation's
template renders the same text from the row's config; without that the user must consent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from evoengine.documents.escaping import printable_lines
from evoengine.engine.rows.space import space_of_row
from evoengine.errors import CandidateError, UsageError
from evoengine.export import ExportRecord
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, Source
from evoengine.kernel.template.metadata import arch_number
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.records import Record
from evoengine.model import DeviceInfo, Problem
from evoengine.search.candidate.screening import screened_kernel
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import family_space, parse_space
from evoengine.target import TARGETS, Target, get_target, target_for_gpu

Warn = Callable[[str], object]
"""Receives a warning of one line."""


_PATCHED: Final = "it is of a variant, whose patch comes from the leaderboard and not from this installation"


def target_of(record: Record) -> Target:
    """The data sheet of a row's GPU, with the row's architecture; that of an L4 if the GPU is unknown."""
    known = {target.marketing_name: target for target in TARGETS.values()}
    gpu = known.get(record.row.device) or target_for_gpu(record.row.device) or get_target("l4")
    return gpu.compiled_for(record.row.arch)


def _render_row(record: Record, space_file: Path | None = None) -> Source:
    """Renders a row's config with the current template. The leaderboard stores the text, not the launch plan.

    Args:
        record: Row.
        space_file: Search-space file to use instead of the row's own; None for that.

    Raises:
        UsageError: The template no longer accepts the config, the file belongs to another family, or the row's
            architecture is malformed.
    """
    row = record.row
    arch_number(row.arch)  # the text enters commands and generated files
    space = space_of_row(record, space_file)
    try:
        template = _library_of(record).load(row.family)
        return template.render(record.evaluation.config, record.study.key.problem, space, target_of(record))
    except CandidateError as error:
        place = space_file or f"the packaged space of {row.family}"
        raise UsageError(
            f"row {row.id} does not fit {place} ({error}): it belongs to an older template, or its search used a "
            "--space FILE: give the same file here"
        ) from error


def rebuild_row(record: Record, space_file: Path | None, warn: Warn, *, trust_source: bool = False) -> Kernel:
    """Compiles a row's stored source again, with line information.

    Args:
        record: Row.
        space_file: Search-space file to use instead of the row's own; None for that.
        warn: Callback that receives a warning if an unverified source is used.
        trust_source: Whether the user consents to a source that cannot be verified.

    Raises:
        UsageError: The row has no source, its template no longer renders, or its source cannot be verified.
        CandidateError: The source no longer compiles, or contains what no generated kernel may contain.
    """
    text = record.evaluation.source
    if not text:
        raise UsageError(f"row {record.row.id} ended as {record.row.status.value} and has no source to profile")
    rendered = _render_row(record, space_file)
    _verify(record, rendered, space_file, warn, trust_source=trust_source)
    source = replace(rendered, text=text, untrusted=_is_untrusted(record, rendered))
    return screened_kernel(Compiler(default_cache_dir()), source, record.row.arch, admitted=trust_source)


def build_for(
    record: Record,
    problem: Problem,
    target: Target,
    arch: str,
    space_file: Path | None = None,
    *,
    trust_source: bool = False,
) -> Kernel:
    """Renders and compiles a row's config for another problem or GPU.

    Args:
        record: Row.
        problem: Problem to build for.
        target: GPU to build for.
        arch: Architecture to compile for.
        space_file: Search-space file to use instead of the row's own; None for that.
        trust_source: Whether the user consents to a variant, whose patch the leaderboard stores.

    Raises:
        CandidateError: The config no longer renders or compiles.
        UsageError: The space file belongs to another family, or the row to a variant without the user's consent.
    """
    if record.variant is not None and not trust_source:
        raise _unverified(record, _PATCHED)
    template = _library_of(record).load(record.row.family)
    space = space_of_row(record, space_file)
    source = template.render(record.evaluation.config, problem, space, target.compiled_for(arch))
    return screened_kernel(Compiler(default_cache_dir()), source, arch, admitted=trust_source)


def export_record(record: Record, space_file: Path | None, warn: Warn, *, trust_source: bool = False) -> ExportRecord:
    """Collects what an export contains of a row.

    Args:
        record: Row.
        space_file: Search-space file to use instead of the row's own; None for that.
        warn: Callback that receives a warning if an unverified source is exported.
        trust_source: Whether the user consents to a source that cannot be verified.

    Raises:
        UsageError: The row has no source, its source cannot be verified, or its kernel can no longer be launched.
    """
    row = record.row
    if row.device_kind == "replay":
        raise UsageError(f"row {row.id} is a replayed one: its kernel was not built here, so there is no source")
    if not record.evaluation.source:
        raise UsageError(f"row {row.id} ended as {row.status.value} and has no source to export")
    rendered = _render_row(record, space_file)
    _verify(record, rendered, space_file, warn, trust_source=trust_source)
    return ExportRecord(
        problem=record.study.key.problem,
        evaluation=record.own_evaluation,
        device=DeviceInfo(row.device_kind, row.device, row.arch, row.predicted, record.driver, record.nvrtc),
        launch=rendered.launch,
        maxrregcount=rendered.maxrregcount,
        row_id=str(row.id),
        evaluated_at=row.created_at.isoformat(sep=" ", timespec="seconds") + " UTC",
        exported_at=datetime.now(UTC).strftime("%Y-%m-%d"),
        only_arch=_library_of(record).load(row.family).meta.only_arch or "",
        untrusted=_is_untrusted(record, rendered),
    )


def _is_untrusted(record: Record, rendered: Source) -> bool:
    """Whether a row's stored source is another one than this installation renders."""
    return rendered.untrusted or record.evaluation.source != rendered.text


def _verify(record: Record, rendered: Source, space_file: Path | None, warn: Warn, *, trust_source: bool) -> None:
    """Checks that a row's stored source is what this installation renders from its config.

    Raises:
        UsageError: It is not and the user does not consent, or it has characters that no template writes.
    """
    row, evaluation = record.row, record.evaluation
    if printable_lines(evaluation.source) != evaluation.source:
        raise UsageError(f"row {row.id}: its stored source has control characters: search again")
    reason = _doubt(record, rendered, space_file)
    if not reason:
        return
    if not trust_source:
        raise _unverified(record, reason)
    warn(f"row {row.id} is not verified: {reason}; the launch plan is the current template's: run the file's own check")


def _unverified(record: Record, reason: str) -> UsageError:
    row_id = record.row.id
    return UsageError(
        f"row {row_id} cannot be verified: {reason}: search again, or read its source with 'leaderboard show "
        f"{row_id} --source' and give --trust-source"
    )


def _library_of(record: Record) -> TemplateLibrary:
    """Returns the templates, with the variant of the row if it has one."""
    return TemplateLibrary(*data_dirs("templates"), variants=() if record.variant is None else (record.variant,))


def _doubt(record: Record, rendered: Source, space_file: Path | None) -> str:
    """Returns why a stored source is not verified; empty if it is."""
    row, evaluation = record.row, record.evaluation
    if record.variant is not None:
        return _PATCHED
    if space_file is None and _changes_derived_values(record):
        return "its search space, which the leaderboard stores, has derived values of its own (give --space FILE)"
    if evaluation.source == rendered.text and evaluation.source_hash == rendered.source_hash:
        return ""
    if rendered.template_hash != evaluation.template_hash:
        return f"template {row.family} or its partials changed since, so its source cannot be rendered again"
    return "its stored source or hash is not what its template renders from its config"


def _changes_derived_values(record: Record) -> bool:
    """Returns whether a stored search space computes other values than the family's own.

    Other values of tunables are harmless, because the template asserts what it needs of them. Derived values are taken
    as they are, such as the size of shared memory.
    """
    family = record.row.family
    own = dict(record.study.key.own_spaces).get(family)
    if own is None:
        return False
    stored, packaged = parse_space(own, f"the search space of row {record.row.id}"), family_space(family)
    return {one.name: one.expr for one in stored.derived} != {one.name: one.expr for one in packaged.derived}
