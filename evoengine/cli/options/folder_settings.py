"""Options that ``evoengine.toml`` of the working directory may set.

The folder may come from anyone. Its file cannot send data away, start another program, choose what is compiled or
written, change how kernels are checked, or read outside of the folder. An option that no list below names is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_ALLOWED: Final = frozenset(
    {
        *("accept", "all", "arch", "best", "budget", "by-forecast", "by-search", "calls", "candidates", "causal"),
        *("check", "cold-l2", "compile-limit", "count", "db", "device", "dtype", "eager", "early", "effort", "energy"),
        *("family", "forecast", "format", "gpu", "id", "islands", "json", "kv-heads", "lengths", "lengths-kv", "lines"),
        *("lse", "mutants", "no-log", "null", "only", "operator", "pareto", "part", "patch", "peers", "port"),
        *("problem", "problems", "ptx", "quiet", "racing", "record-only", "runs", "samples", "seed", "seq-kv"),
        *("sharing-cost", "shortlist", "sink", "skip", "softcap", "source", "spill-limit", "starts", "status"),
        *("strategy", "target", "time-limit", "top", "transfer", "valid", "verbose", "watch", "window"),
        *("with-failing", "workload"),
    }
)
"""Options that choose what is searched, shown or exported; values that name files or code are checked besides."""
_REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "chooses what is written": ("output", "force", "log", "markdown", "resume"),
    "decides what is compiled": ("space", "patches"),
    "sends data to another machine": (
        *("cluster", "cluster-parts", "llm-url", "llm-model", "llm-price", "llm-calls", "llm-tokens", "llm-money"),
        *("llm-seconds", "llm-reply-tokens", "llm-timeout"),
    ),
    "starts another program": ("ncu", "again", "sass"),
    "changes how kernels are checked": ("sanitizer", "inputs-seed", "small-cases"),
    "chooses how many processes are started": ("workers",),
}
"""Reasons for the refused options."""
_REASONS: Final[Mapping[str, str]] = {name: reason for reason, names in _REFUSED.items() for name in names}
_SQLITE: Final = "sqlite:///"
_REPLAY: Final = "replay:"


def folder_objection(parameter: Any, name: str, value: Any) -> str:
    """Returns why an option is not accepted from the working directory's file; empty if it is accepted.

    Args:
        parameter: Option of the command line.
        name: Its name without dashes.
        value: Value in the file, of the option's type.
    """
    if name not in _ALLOWED:
        reason = f"{_REASONS.get(name, 'may do harm')}, which a file in the working directory cannot"
    else:
        reason = _objection_to_text(parameter, name, value) if isinstance(value, str) else ""
    return f"{reason}: give --{name} in the call, or set it in your own config.toml" if reason else ""


def _objection_to_text(parameter: Any, name: str, value: str) -> str:
    """Returns why a text that names a file, a server or code is not accepted."""
    match name:
        case "strategy" if _is_class_path(value):
            return "names a class, which is code"
        case "db" if "://" in value.removeprefix(_SQLITE):
            return "names a leaderboard on a server"
        case "db" if _is_outside(value.removeprefix(_SQLITE)):
            return "names a leaderboard outside of the working directory"
        case "family" | "check" if any(part.strip().endswith(".toml") for part in value.split(",")):
            return "names a search-space file, which decides what is compiled"
        case "device" if value.startswith(_REPLAY):
            file, _, _ = value.removeprefix(_REPLAY).partition("?")  # the options after it are no part of the name
            return _objection_to_file(file)
    return _objection_to_file(value) if parameter.type_descriptor.annotation is Path else ""


def _objection_to_file(value: str) -> str:
    if _is_outside(value):
        return "names a file outside of the working directory"
    path = Path(value)
    if path.exists() and not path.is_file() and not path.is_dir():
        return "names a pipe or a device, which may never end"
    return ""


def _is_class_path(value: str) -> bool:
    """Whether a strategy may be a class: the options of a built-in one, ``evolution:elites=8``, have a ``=``."""
    _, _, rest = value.partition(":")
    return bool(rest) and "=" not in rest


def _is_outside(value: str) -> bool:
    """Whether a path leads out of the working directory, by itself or by a link of the folder."""
    path = Path(value)
    try:
        return path.is_absolute() or ".." in path.parts or not path.resolve().is_relative_to(Path.cwd())
    except (OSError, RuntimeError):  # links in a loop, a name that is too long
        return True
