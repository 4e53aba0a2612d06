"""Turns records of options into typer parameters.

typer reads the options of a verb from its signature. :func:`command` replaces every parameter that is a record of
options (:mod:`evoengine.engine.options.fields`) by the options of its fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import typer

from evoengine.cli.options.help_panels import PanelCommand
from evoengine.cli.options.numbers import number_parser
from evoengine.cli.options.verbosity_options import takes_verbosity
from evoengine.engine.options.fields import Option, OptionGroup

Verb = Callable[..., None]
_Marker = TypeVar("_Marker", Option, OptionGroup)
_METAVARS: Final = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
"""Names of values in the help, for options that name none."""


def command(app: typer.Typer, name: str | None = None) -> Callable[[Verb], Verb]:
    """Registers a verb with the options of its records, ``--quiet`` and ``--verbose``.

    Args:
        app: Group that gets the verb.
        name: Name of the verb; None for that of the function.
    """

    def register(verb: Verb) -> Verb:
        return app.command(name, cls=PanelCommand)(takes_verbosity(with_options(verb)))

    return register


def with_options(verb: Verb) -> Verb:
    """Replaces each record in a verb's signature by the options of its fields."""
    own = inspect.signature(verb, eval_str=True).parameters.values()
    parameters = [spliced for item in own for spliced in _spliced(item.name, item.annotation, item.default)]

    @functools.wraps(verb)
    def call(**values: Any) -> None:
        try:
            verb(**{item.name: _built(item.name, item.annotation, values) for item in own})
        except KeyboardInterrupt:
            raise typer.Abort from None  # Typer ends silently on the other

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in parameters}
    return call


def _spliced(name: str, annotation: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The typer parameters of a verb's parameter or of a record's field."""
    record = _record_of(annotation)
    if record is not None:
        for field, hint in _fields(record):
            value = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            yield from _spliced(field.name, hint, value)
        return
    option = _marker(annotation, Option)
    if option is not None:
        annotation, default = _typer_annotation(name, get_args(annotation)[0], option, default)
    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typer_annotation(name: str, kind: Any, option: Option, default: Any) -> tuple[Any, Any]:
    if get_origin(kind) is tuple:  # typer's word for several values
        required = default is inspect.Parameter.empty
        item = get_args(kind)[0]
        kind, default = (list[item], default) if required else (list[item] | None, None)  # type: ignore[valid-type]
    metavar = option.metavar or _METAVARS.get(_single(kind))
    parser = number_parser(_single(kind), option)
    if option.positional:
        return Annotated[kind, typer.Argument(parser=parser, metavar=option.metavar, help=option.help)], default
    # A flag that can be turned off needs a name for that, which typer adds where no name is given.
    can_be_off = default is True or kind == bool | None
    names = option.names or (() if can_be_off else (f"--{name.replace('_', '-')}",))
    made = typer.Option(
        *names,
        parser=parser,
        min=option.min,
        max=option.max,
        metavar=metavar,
        help=option.help,
        rich_help_panel=option.panel,
        autocompletion=None if option.values is None else _completion(option),
    )
    return Annotated[kind, made], default


def _single(kind: Any) -> Any:
    """Type of one value: ``int`` for ``int | None`` and ``list[int]``."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    return kind if not inner or isinstance(inner[0], str) else _single(inner[0])


def _completion(option: Option) -> Callable[[str], list[str]]:
    """Returns typer's completion of an option: its known values that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if option.several else ("", "", incomplete)
        given = before.split(",")
        known = option.values() if option.values is not None else ()
        return [f"{before}{comma}{value}" for value in known if value.startswith(last) and value not in given]

    return complete


def _built(name: str, annotation: Any, values: dict[str, Any]) -> Any:
    """The value of a verb's parameter or of a record's field, from the values that typer has parsed."""
    record = _record_of(annotation)
    if record is None:
        value, kind = values[name], get_args(annotation)
        return tuple(value or ()) if kind and get_origin(kind[0]) is tuple else value
    made = record(**{field.name: _built(field.name, hint, values) for field, hint in _fields(record)})
    group = _marker(annotation, OptionGroup)
    return made if group is None else getattr(made, group.method)()


def _record_of(annotation: Any) -> Any:
    group = _marker(annotation, OptionGroup)
    if group is not None:
        return group.record
    return annotation if dataclasses.is_dataclass(annotation) else None


def _marker(annotation: Any, kind: type[_Marker]) -> _Marker | None:
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _fields(record: Any) -> Iterator[tuple[Any, Any]]:
    """Fields that users can set, with their annotations."""
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        if _marker(hint, Option) is not None or _marker(hint, OptionGroup) is not None:
            yield field, hint
