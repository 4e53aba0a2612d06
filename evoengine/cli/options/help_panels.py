"""Help of a verb in sections, one for each panel of its options."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from evoengine.engine.options.fields import Panel

_ORDER: Final = {str(panel): number for number, panel in enumerate(Panel)}
_ARGUMENTS: Final = "Arguments"
_COLUMN: Final = 26
"""Width of the option names beside their help; longer names get a line of their own."""


def write_panels(command: Any, context: Any, formatter: Any) -> None:
    """Writes the options of a command by panel, in the order of :class:`~evoengine.engine.options.fields.Panel`.

    Args:
        command: Command of typer.
        context: Context of its call.
        formatter: Formatter of its help.
    """
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            last = parameter.name == "help" and str(Panel.OUTPUT) in panels
            own = Panel.OUTPUT if last else _ARGUMENTS if parameter.param_type_name == "argument" else Panel.OWN
            panels.setdefault(str(getattr(parameter, "rich_help_panel", None) or own), []).append(record)
    for name in sorted(panels, key=lambda name: _ORDER.get(name, -1)):
        (words, text), *others = panels[name]
        with formatter.section(name):
            formatter.write_dl([(words.ljust(_COLUMN), text), *others], col_max=_COLUMN)  # one column in all panels


class PanelCommand(TyperCommand):
    """A verb whose help is in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_panels(self, ctx, formatter)


class PanelGroup(TyperGroup):
    """A group of verbs whose own options are in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_panels(self, ctx, formatter)
        self.format_commands(ctx, formatter)
