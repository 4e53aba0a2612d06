"""Renders prompts from the Jinja templates in ``templates/prompts/``.

Everything that a template inserts is data of unknown origin: source that a model wrote, messages of compilers that
repeat it, names from a leaderboard. Filters bound its length, remove control characters, and enclose it in tags or
quotes that it cannot close: the tag of a text names the text's own hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evoengine.errors import TemplateError
from evoengine.evolution.llm.blocks import MOST_EDITS
from evoengine.evolution.llm.exchange import Message
from evoengine.evolution.llm.plain_text import plain_text
from evoengine.evolution.records import Context, LineCounters, VariantSummary
from evoengine.model import Patch, Region, Value
from evoengine.space.data_dirs import data_dirs

FOLDER: Final = "prompts"
_MOST_SOURCE: Final = 48_000
"""Characters of source in a prompt."""
_MOST_LINES: Final = 24
"""Source lines with counters in a prompt."""
_MOST_ROWS: Final = 6
_LONGEST_QUOTE: Final = 300
_LONGEST_CONFIG: Final = 2_000


@dataclass(frozen=True)
class Prompts:
    """Prompts for all operators.

    Args:
        folders: Folders of prompt templates; the first that has a file wins.
    """

    folders: tuple[Path, ...]

    @classmethod
    def installed(cls) -> Prompts:
        """Returns the prompts shipped with EvoEngine, under those of the user's folder."""
        return cls(tuple(folder / FOLDER for folder in data_dirs("templates")))

    def patches(self, context: Context, focus: str) -> tuple[Message, ...]:
        """Asks for a patch.

        Args:
            context: Context.
            focus: Name of the region to consider first; empty for none.
        """
        shown, left_out = _chosen_regions(context, ())
        return self._chat("patches", context, regions=shown, left_out=left_out, focus=focus)

    def configs(self, context: Context, count: int, mistakes: Iterable[str]) -> tuple[Message, ...]:
        """Asks for configs.

        Args:
            context: Context.
            count: Number of configs.
            mistakes: Configs of earlier answers with the reasons why they are not valid.
        """
        return self._chat("configs", context, count=count, mistakes=tuple(mistakes))

    def repair(self, context: Context, proposal: str, message: str, hints: Sequence[str]) -> tuple[Message, ...]:
        """Asks for the correction of a patch.

        Args:
            context: Context.
            proposal: Rejected proposal, as text.
            message: Message of the stage that rejected it.
            hints: Further explanations.
        """
        named = tuple(region.file for region in context.regions if region.file in proposal)
        shown, _ = _chosen_regions(context, named)
        return self._chat("repair", context, regions=shown, proposal=proposal, message=message, hints=hints)

    def _chat(self, name: str, context: Context, **more: Any) -> tuple[Message, ...]:
        values = {**_view(context), "most_characters": _MOST_SOURCE, "most_edits": MOST_EDITS, **more}
        return Message("system", self._text("system", {})), Message("user", self._text(name, values))

    def _text(self, name: str, values: Mapping[str, Any]) -> str:
        try:
            text = _environment(self.folders).get_template(f"{name}.md.jinja").render(values)
        except (jinja2.TemplateError, TypeError, ValueError) as error:  # the user's folder may hold any template
            where = next((folder for folder in self.folders if folder.is_dir()), Path(FOLDER))
            line = " ".join(str(error).split())
            raise TemplateError(where / f"{name}.md.jinja", "", f"{type(error).__name__}: {line}") from None
        return "\n".join(line for line in _single_blanks(text)) + "\n"


def patch_text(patch: Patch) -> str:
    """Returns a patch in the format that a model answers with."""
    head = {
        "summary": patch.summary,
        "tunables": [
            {
                "name": one.name,
                "values": one.values,
                "default": one.default,
                "doc": one.doc,
                "constraint": one.constraint,
                "reason": one.reason,
            }
            for one in patch.tunables
        ],
    }
    edits = (
        f"FILE: {edit.file}\n<<<<<<< SEARCH\n{edit.search}=======\n{edit.replace}>>>>>>> REPLACE\n"
        for edit in patch.edits
    )
    return "\n".join((f"```json\n{json.dumps(head, ensure_ascii=False)}\n```\n", *edits))


def region_costs(context: Context) -> list[tuple[Region, int]]:
    """Returns the regions with their warp instructions on the emulator, the most expensive first."""
    costs = []
    for region in context.regions:
        own = {line.strip() for line in region.text.splitlines()}
        cost = sum(one.instructions for one in context.lines if one.file == region.file and one.text.strip() in own)
        costs.append((region, cost))
    return sorted(costs, key=lambda pair: -pair[1])


def _chosen_regions(context: Context, first: Sequence[str]) -> tuple[list[Region], list[str]]:
    """Returns the regions that fit into a prompt, in file order, and the names of the others.

    Args:
        context: Context.
        first: Files whose regions come before the expensive ones.
    """
    ordered = sorted(region_costs(context), key=lambda pair: pair[0].file not in first)
    kept: set[Region] = set()
    size = 0
    for region, _ in ordered:
        size += len(region.text)
        if size <= _MOST_SOURCE or not kept:
            kept.add(region)
    shown = [region for region in context.regions if region in kept]
    return shown, [f"{region.file}: {region.name}" for region in context.regions if region not in kept]


def _view(context: Context) -> dict[str, Any]:
    problem, space = context.problem, context.space
    return {
        "problem": problem.key,
        "shape": (
            f"batch {problem.batch}, heads {problem.heads} (K/V {problem.kv_heads}), queries {problem.seq_q}, "
            f"keys {problem.seq_kv}, head_dim {problem.head_dim}, {problem.dtype.value}"
            f"{', causal' if problem.causal else ''}"
        ),
        "target_name": context.target.marketing_name,
        "limits": tuple(context.target.scope().items()),
        "family": context.family,
        "parent": context.parent,
        "resources": context.resources,
        "verdict": context.verdict,
        "compiler_log": context.compiler_log,
        "lines": _costly(context.lines),
        "tunables": space.tunables,
        "derived": space.derived,
        "constraints": space.constraints,
        "best": context.best[:_MOST_ROWS],
        "failed": context.failed[:_MOST_ROWS],
        "picks": [_pick(one) for one in context.picks],
        "rejected": context.rejected[:_MOST_ROWS],
    }


def _costly(lines: Sequence[LineCounters]) -> list[LineCounters]:
    return sorted(lines, key=lambda one: -one.instructions)[:_MOST_LINES]


def _pick(variant: VariantSummary) -> dict[str, Any]:
    edits = () if variant.patch is None else variant.patch.edits
    return {
        "family": variant.family,
        "time_us": variant.time_us,
        "operator": variant.operator,
        "summary": variant.summary,
        "edits": [f"FILE: {edit.file}\nbefore:\n{edit.search}\nafter:\n{edit.replace}" for edit in edits[-2:]],
    }


def _environment(folders: Sequence[Path]) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folders),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the output is a prompt, not HTML
    )
    environment.filters |= {
        "data": _data,
        "quoted": _quoted,
        "line": _line,
        "word": _word,
        "us": _microseconds,
        "config": _config,
    }
    return environment


def _data(text: str, label: str, most: int) -> str:
    """Encloses a text of several lines in tags that it cannot close, because they name its own hash."""
    shown = plain_text(text)
    if len(shown) > most:
        shown = f"{shown[:most]}\n[{len(shown) - most} characters are left out]"
    token = hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()[:12]
    return f"<data {token} {_line(label)}>\n{shown.rstrip()}\n</data {token}>"


def _quoted(text: str) -> str:
    """Returns a text as one JSON string."""
    return json.dumps(_line(text), ensure_ascii=False)


def _line(text: str, most: int = _LONGEST_QUOTE) -> str:
    line = " ".join(plain_text(str(text)).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _word(text: str) -> str:
    return _line(text).replace(" ", "_").replace("|", "_") or "-"


def _microseconds(time_us: float | None) -> str:
    return "not timed" if time_us is None else f"{time_us:.3f} µs"


def _config(config: Mapping[str, Value]) -> str:
    return _line(json.dumps(dict(config), sort_keys=True), _LONGEST_CONFIG)


def _single_blanks(text: str) -> Iterable[str]:
    """Yields the lines of a text outside of data with at most one blank line between two others."""
    blank, closing = True, ""
    for line in text.rstrip().split("\n"):
        if not closing and line.startswith("<data "):
            closing = f"</data {line.split(' ')[1]}>"
        elif line == closing:
            closing = ""
        is_blank = not closing and not line.strip()
        if not (is_blank and blank):
            yield line
        blank = is_blank
