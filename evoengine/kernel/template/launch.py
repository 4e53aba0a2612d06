"""Launch of a rendered config: what the expressions of ``template.toml`` yield for its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from evoengine.errors import RenderError, SearchSpaceError, UsageError
from evoengine.kernel.records import LaunchSpec, StepSpec
from evoengine.kernel.template.environment import one_line
from evoengine.kernel.template.expression_names import with_definitions
from evoengine.kernel.template.files import META_FILE
from evoengine.kernel.template.metadata import TemplateMeta
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import Config, Problem, Value
from evoengine.space.language.expression import ExpressionError, evaluate, evaluate_int
from evoengine.space.language.rules import TRAIT_NAMES, problem_scope
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

_FEW_SMS: Final = 2
"""Number of SMs of an assumed GPU on which the CTAs of even small problems compute several pieces of work."""
_MOST_CTAS: Final = (2**31 - 1, 65535, 65535)
"""Limits of the axes of a grid (CUDA C++ Programming Guide, technical specifications)."""
_MOST_COUNTERS: Final = 2**28
"""A gibibyte of them, which the host sets to zero."""


def fixed_values(config: Config, problem: Problem, space: SearchSpace, target: Target) -> dict[str, Value]:
    """Returns config, derived values and traits: every name whose value is compiled into the binary.

    Derived values that depend on the batch size or the lengths only serve the constraints and are left out.

    Raises:
        RenderError: A value is missing or has the wrong type.
        SearchSpaceError: A derived value cannot be evaluated.
    """
    try:
        derived = space.derive(config.as_dict(), problem, target)
    except SearchSpaceError:
        raise
    except UsageError as error:
        raise RenderError(f"config {config.key}: {error}") from error
    own = {name: value for name, value in derived.items() if name not in space.shape_dependent}
    scope = problem_scope(problem)
    return {**config.as_dict(), **own, **{name: scope[name] for name in TRAIT_NAMES}}


def with_few_sms(
    launch: LaunchSpec, config: Config, problem: Problem, space: SearchSpace, target: Target, text: str
) -> LaunchSpec:
    """Adds the names that differ on a GPU of few SMs, if it can run the same binary: the text does not read them."""
    try:
        others = fixed_values(config, problem, space, replace(target, sms=_FEW_SMS))
        few = tuple(item for item in others.items() if item not in launch.names)
        if not few or any(len(re.findall(rf"\b{name}\b", text)) > 1 for name, _ in few):
            return launch
        found = replace(launch, few_sms=few)
        check_launch(found.on_few_sms or launch, problem)
    except (RenderError, SearchSpaceError):  # an expression of the user's own that has no value for few SMs
        return launch
    return found


def resolved(meta: TemplateMeta, space: SearchSpace) -> TemplateMeta:
    """Returns the contents of ``template.toml`` whose launch expressions read the config and the problem only.

    Raises:
        RenderError: An expression becomes too large.
    """
    try:
        return with_definitions(meta, space)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: launch: {one_line(error)}") from error


def further_steps(meta: TemplateMeta, fixed: Mapping[str, Value]) -> tuple[StepSpec, ...]:
    """Returns all further steps of a family; the prologue states even those whose condition does not hold.

    Raises:
        RenderError: An expression cannot be evaluated.
    """
    return tuple(
        StepSpec(
            entry=step.entry,
            grid=step.grid,
            threads=evaluated(step.threads, fixed, f"then.{step.entry}.threads"),
            smem_bytes=evaluated(step.smem_bytes, fixed, f"then.{step.entry}.smem_bytes"),
        )
        for step in meta.then
    )


def launch_spec(
    meta: TemplateMeta, fixed: Mapping[str, Value], steps: tuple[StepSpec, ...], element_bytes: int
) -> LaunchSpec:
    """Returns the launch of one config, with the further steps whose condition holds.

    Raises:
        RenderError: An expression cannot be evaluated, or no tensor map can have such a box.
    """
    return LaunchSpec(
        grid=meta.grid,
        threads=evaluated(meta.threads, fixed, "launch.threads"),
        smem_bytes=evaluated(meta.smem_bytes, fixed, "launch.smem_bytes"),
        names=tuple(fixed.items()),
        workspace_bytes=meta.workspace_bytes,
        counters=meta.counters,
        then=tuple(
            spec
            for step, spec in zip(meta.then, steps, strict=True)
            if _holds(step.when, fixed, f"then.{step.entry}.when")
        ),
        maps=_maps(meta, fixed, element_bytes),
    )


def evaluated(text: str, scope: Mapping[str, Value], key: str) -> int:
    """Evaluates one expression of ``template.toml``.

    Args:
        text: The expression.
        scope: Values of the names that it reads.
        key: Its key, for messages.

    Raises:
        RenderError: It has no integer value.
    """
    try:
        return evaluate_int(text, scope)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: {key}: {one_line(error)}") from error


def check_launch(launch: LaunchSpec, problem: Problem) -> None:
    """Checks that every expression of the launch has a valid value for the rendered problem.

    Raises:
        RenderError: An expression has no valid value.
    """
    try:
        workspace, steps = launch.workspace(problem), launch.steps(problem)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: launch: {one_line(error)}") from error
    for name, size in (("workspace_bytes", workspace.bytes), ("counters", workspace.counters)):
        if size < 0:
            raise RenderError(f"{META_FILE}: launch.{name}: is {size} for {problem.key}, it must be at least 0")
    if workspace.counters > _MOST_COUNTERS:
        raise RenderError(
            f"{META_FILE}: launch.counters: is {workspace.counters} for {problem.key}, at most {_MOST_COUNTERS}"
        )
    for step in steps:
        if min(step.grid) < 1:
            raise RenderError(
                f"{META_FILE}: grid of {step.entry}: is {step.grid} for {problem.key}, every axis needs at least 1"
            )
        if any(size > most for size, most in zip(step.grid, _MOST_CTAS, strict=True)):
            raise RenderError(
                f"{META_FILE}: grid of {step.entry}: is {step.grid} for {problem.key}, CUDA allows {_MOST_CTAS}: "
                "choose another family, or fewer sequences or heads"
            )


def _maps(meta: TemplateMeta, fixed: Mapping[str, Value], element_bytes: int) -> tuple[MapSpec, ...]:
    found = []
    for number, item in enumerate(meta.maps):
        rows, columns = (
            evaluated(getattr(item, name), fixed, f"maps[{number}].{name}") for name in ("box_rows", "box_columns")
        )
        grouped = _holds(item.grouped, fixed, f"maps[{number}].grouped")
        found.append(MapSpec(item.tensor, rows, columns, item.swizzle_bytes, grouped))
        objection = found[-1].objection(element_bytes)
        if objection:
            raise RenderError(f"{META_FILE}: maps[{number}].{objection}")
    return tuple(found)


def _holds(text: str, scope: Mapping[str, Value], key: str) -> bool:
    try:
        return bool(evaluate(text, scope))
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: {key}: {one_line(error)}") from error
