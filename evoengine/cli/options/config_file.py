"""Defaults of options from ``evoengine.toml`` in the working directory and the user's ``evoengine/config.toml``.

A key is an option's name without its dashes. At the top level it applies to every verb that has the option, in a table
(``[search]``, ``[leaderboard.show]``) to that verb alone::

    db = "h200.db"
    [search]
    budget = 200
    starts = false

The command line wins over the files, the working directory over the user's folder, and a table over the top level.
The file of the working directory may come with a folder from anyone, so it can set harmless options only
(:mod:`evoengine.cli.options.folder_settings`); the user's own file can set the others.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from evoengine.cli.options.folder_settings import folder_objection
from evoengine.documents.bounds import BoundsError, read_toml
from evoengine.errors import ConfigFileError
from evoengine.system.user_folders import user_folder

HERE: Final = "evoengine.toml"
_KINDS: Final[Mapping[type, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
"""Types that a file may give for an option of each type, and their name in messages; all other options are texts."""
_DATABASES: Final = ("db", "source", "destination")
"""Options and arguments that may be the address of a server, with a password."""
_NOT_FROM_FILES: Final = frozenset(
    ("help", "version", "debug", "install-completion", "show-completion", "trust-source", "variants")
)
"""Options that no file sets; consent to run unverified code must be given in the call."""


@dataclass(frozen=True)
class Setting:
    """One default set by a file."""

    verb: tuple[str, ...]
    """Verb, as in ``("leaderboard", "show")``; empty for all verbs that have the option."""
    option: str
    value: Any
    file: Path

    def __str__(self) -> str:
        return f"{'.'.join((*self.verb, self.option))} = {self.shown!r}"

    @property
    def shown(self) -> Any:
        """Value without the credentials of a server."""
        return without_credentials(self.option, self.value)


def without_credentials(option: str, value: Any) -> Any:
    """Returns the value of an option for messages: for a leaderboard on a server, its address alone."""
    if option in _DATABASES and "://" in str(value):
        from evoengine.leaderboard.database.connection import database_name

        return database_name(value)
    return value


def config_files() -> tuple[Path, ...]:
    """The existing files, in the order in which later ones win."""
    folder = user_folder("config")
    files = (Path(HERE),) if folder is None else (folder / "config.toml", Path(HERE))
    return tuple(path for path in files if _is_file(path))


def _is_file(path: Path) -> bool:
    """Whether a file exists; a home that cannot be looked at has none."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_settings(command: Any, files: tuple[Path, ...] | None = None) -> list[Setting]:
    """Reads all settings, in the order in which later ones win.

    Args:
        command: Root command; its verbs and options are the valid keys.
        files: Files to read; None for :func:`config_files`.

    Raises:
        ConfigFileError: A file is malformed, or names an unknown verb or option or an invalid value.
    """
    found: list[Setting] = []
    for file in config_files() if files is None else files:
        try:
            document = read_toml(file)
        except OSError as error:
            raise ConfigFileError(file, "", f"cannot be read: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigFileError(file, "", f"is no TOML: {error}") from error
        except BoundsError as error:
            raise ConfigFileError(file, "", str(error)) from error
        found += _settings(command, document, (), file)
    return found


def defaults(command: Any, settings: list[Setting]) -> dict[str, Any]:
    """The settings in the form of typer's ``default_map``: values by parameter name, nested by verb."""
    result: dict[str, Any] = {}
    files = list(dict.fromkeys(setting.file for setting in settings))
    for setting in sorted(settings, key=lambda one: (files.index(one.file), len(one.verb) > 0)):
        for verb, option in _options(command):
            if option.name == setting.option and setting.verb in ((), verb):
                place = result
                for name in verb:
                    place = place.setdefault(name, {})
                place[option.parameter.name] = setting.value
    return result


@dataclass(frozen=True)
class _Option:
    name: str
    """Name without dashes, as in a file."""
    parameter: Any


@functools.cache
def _options(command: Any) -> tuple[tuple[tuple[str, ...], _Option], ...]:
    """Every option of every verb."""
    return tuple(_options_below(command, ()))


def _options_below(command: Any, verb: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Option]]:
    """The options of one verb and of the verbs below it."""
    for parameter in command.params if verb else ():
        name = max(parameter.opts, key=len).lstrip("-")
        if parameter.param_type_name == "option" and name not in _NOT_FROM_FILES:
            yield verb, _Option(name, parameter)
    for name, child in getattr(command, "commands", {}).items():
        yield from _options_below(child, (*verb, name))


def _settings(command: Any, table: Mapping[str, Any], verb: tuple[str, ...], file: Path) -> Iterator[Setting]:
    verbs = {place for place, _ in _options(command)} | {place[:-1] for place, _ in _options(command)}
    for key, value in table.items():
        where = ".".join((*verb, key))
        if isinstance(value, dict):
            if (*verb, key) not in verbs:
                known = sorted({place[len(verb)] for place in verbs if place[: len(verb)] == verb and place != verb})
                raise ConfigFileError(file, where, f"unknown verb: choose one of {', '.join(known) or 'none'}")
            yield from _settings(command, value, (*verb, key), file)
            continue
        options = [option for place, option in _options(command) if option.name == key and (not verb or place == verb)]
        if not options:
            whose = f"verb '{' '.join(verb)}' has no" if verb else "no verb has an"
            raise ConfigFileError(file, where, f"{whose} option --{key}")
        for option in options:
            reason = _objection(option.parameter, value) or (
                folder_objection(option.parameter, key, value) if file.name == HERE else ""
            )
            if reason:
                raise ConfigFileError(file, where, reason)
        yield Setting(verb, key, value, file)


def _objection(parameter: Any, value: Any) -> str:
    """Why a value is invalid for an option; empty if it is valid."""
    if parameter.multiple:
        if not isinstance(value, list):
            return f"is {value!r}, not a list"
        return next(filter(None, (_objection_to_one(parameter, item) for item in value)), "")
    return _objection_to_one(parameter, value)


def _objection_to_one(parameter: Any, value: Any) -> str:
    kind = _kind(parameter.type_descriptor.annotation)
    allowed, words = _KINDS.get(kind, ((str,), "a text"))
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        return f"is {value!r}, not {words}"
    if kind in (int, float):
        low, high = parameter.min, parameter.max
        if (low is not None and value < low) or (high is not None and value > high):
            limits = f"of at least {low}" if high is None else f"from {low} to {high}"
            return f"is {value!r}, not {words} {limits}"
    return ""


def _kind(annotation: Any) -> Any:
    """The type of one value: ``int`` for ``int | None`` and ``list[int]``."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return _kind(inner[0]) if inner else annotation
