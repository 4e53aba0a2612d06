"""Page of one or more studies: one HTML file without external references."""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import sys
from collections.abc import Mapping
from typing import Any

import jinja2

from evoengine import __version__
from evoengine.documents.escaping import printable_lines
from evoengine.errors import MissingDependencyError
from evoengine.report.facts import StudyFacts
from evoengine.report.view import StudyView


def render_page(*studies: StudyFacts, program: str, written_at: str) -> str:
    """Renders studies as HTML; the page shows one at a time and has a chooser if there are several.

    Args:
        studies: Data of the studies, at least one; the first is shown first.
        program: Command that starts EvoEngine, for the command that repeats a study.
        written_at: Time in the footer.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise MissingDependencyError(
            f"the report needs Plotly: {sys.executable} -m pip install 'plotly>=6,<8' (the extra 'report')"
        )
    from plotly.offline import get_plotlyjs

    views = [StudyView(facts, program) for facts in studies]
    plots = {view.facts.key: _plots(view) for view in views}
    return _environment().get_template("page.html.jinja").render(
        views=views,
        plots={key: script_json(own) for key, own in plots.items()},
        style=_text("page.css"),
        script=_text("page.js"),
        plotly=get_plotlyjs() if any(plots.values()) else "",
        version=__version__,
        written_at=written_at,
    )  # fmt: skip


def _plots(view: StudyView) -> dict[str, Mapping[str, Any]]:
    """Returns the plots of a study by their ids on the page."""
    return {f"{view.facts.key}-{figure.name}": figure.plot for figure in view.figures()}


def _environment() -> jinja2.Environment:
    """Returns the environment, which escapes all values; only the package's own texts are marked safe."""
    loader = jinja2.PackageLoader("evoengine.report", ".")
    return jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: Any) -> Any:
    """Escapes control characters of a value, bidirectional ones included; marked-up text stays."""
    return printable_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _text(name: str) -> str:
    return (importlib.resources.files("evoengine.report") / name).read_text(encoding="utf-8")


def script_json(document: Mapping[str, Any]) -> str:
    """Encodes JSON for a script element: all characters with a meaning in HTML are escaped."""
    text = json.dumps(document, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
