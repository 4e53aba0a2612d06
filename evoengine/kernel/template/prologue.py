"""Prologue of a rendered kernel: the constants of ``struct Cfg`` as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evoengine.documents.escaping import comment
from evoengine.errors import RenderError
from evoengine.kernel.abi import ENTRY, PARAM_BYTES
from evoengine.kernel.records import StepSpec
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import DType, Problem, Value


@dataclass(frozen=True)
class Field:
    """One constant of ``struct Cfg``."""

    name: str
    cpp_type: str
    literal: str
    comment: str
    """``  // unit: doc``, or empty."""
    choices: tuple[str, ...] = ()
    """``NAME_VALUE = index`` for each value of a categorical tunable."""


@dataclass(frozen=True)
class Prologue:
    """Constants of ``struct Cfg``, grouped by origin."""

    tunables: tuple[Field, ...]
    derived: tuple[Field, ...]
    traits: tuple[Field, ...]
    launch: tuple[Field, ...]


def constant(name: str, value: Value, unit: str = "", doc: str = "") -> Field:
    """Returns an ``int`` or ``bool`` constant.

    Raises:
        RenderError: The value is a text or does not fit an int.
    """
    comment = comment_of(unit, doc)
    if isinstance(value, bool):
        return Field(name, "bool", "true" if value else "false", comment)
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return Field(name, "int", str(value), comment)
    raise RenderError(f"{name} is {value!r}, which is neither an int nor a bool: correct it in the search space")


def choice(name: str, value: Value, values: Iterable[Value], unit: str = "", doc: str = "") -> Field:
    """Returns a categorical constant: one named index per value, and the index of the config's value."""
    names = {item: f"{name}_{str(item).upper()}" for item in values}
    choices = tuple(f"{text} = {index}" for index, text in enumerate(names.values()))
    return Field(name, "int", names[value], comment_of(unit, doc), choices)


def comment_of(unit: str, doc: str) -> str:
    """Returns the trailing comment of a constant, on one line."""
    text = " ".join(": ".join(part for part in (unit, doc) if part).split())
    safe = text if text.isprintable() and not text.endswith("\\") else comment(text)
    return f"  // {safe}" if text else ""


def trait_fields(problem: Problem) -> tuple[Field, ...]:
    """Returns the traits of the problem, which are compiled into the binary."""
    return (
        constant("HEAD_DIM", problem.head_dim, "elements"),
        constant("IS_BF16", problem.dtype is DType.BF16),
        constant("CAUSAL", problem.causal),
        constant("HAS_WINDOW_LEFT", problem.window_left is not None, doc="keys too far before the diagonal are hidden"),
        constant("HAS_WINDOW_RIGHT", problem.window_right is not None, doc="keys too far after it, too"),
        constant("HAS_SOFTCAP", problem.softcap > 0),
        constant("HAS_SINK", problem.sink),
        constant("HAS_LSE", problem.lse, doc="the log-sum-exp of each row is an output"),
        constant("PACKED", problem.packed, doc="sequences of different lengths lie one after the other"),
    )


def launch_fields(launches: Iterable[StepSpec], maps: Iterable[MapSpec]) -> tuple[Field, ...]:
    """Returns the host's launch sizes: ``LAUNCH_THREADS``, for a further step ``EVO_COMBINE_THREADS``, and so on.

    For each tensor map there are its box and its swizzle: ``K_BOX_ROWS``, ``K_BOX_COLUMNS``, ``K_SWIZZLE_BYTES``.
    """
    found = []
    for step in launches:
        name = "LAUNCH" if step.entry == ENTRY else step.entry.upper()
        whose = "" if step.entry == ENTRY else f" of {step.entry}"
        found.append(constant(f"{name}_THREADS", step.threads, f"threads per CTA{whose}"))
        found.append(constant(f"{name}_SMEM_BYTES", step.smem_bytes, f"bytes of dynamic shared memory per CTA{whose}"))
    for item in maps:
        name = item.tensor.upper()
        found.append(constant(f"{name}_BOX_ROWS", item.box_rows, f"rows of a box of {name}"))
        found.append(constant(f"{name}_BOX_COLUMNS", item.box_columns, "elements of each of its rows"))
        found.append(constant(f"{name}_SWIZZLE_BYTES", item.swizzle_bytes, "span of its swizzle in shared memory"))
    return (*found, constant("PARAM_BYTES", PARAM_BYTES, "bytes of AttentionParams"))
