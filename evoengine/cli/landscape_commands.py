"""Command-line options of ``landscape`` and its sub-verbs; ``verbs/landscape.py`` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evoengine.cli.options.help_panels import PanelGroup
from evoengine.cli.options.parameters import command
from evoengine.engine.options.fields import Force, Json, Option
from evoengine.engine.options.verbs import OutputFile, RecordOptions

landscape_app = typer.Typer(
    cls=PanelGroup,
    help="Record whole search spaces; --device replay:FILE then searches them without a GPU.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

_File = Annotated[Path, Option("Landscape to read.", metavar="FILE", positional=True)]
_ForeignFile = Annotated[Path, Option("File to import.", metavar="FILE", positional=True)]


@command(landscape_app)
def record(options: RecordOptions) -> None:
    """Evaluate a space, or a uniform sample of it, into a file; the same command resumes where it stopped."""
    from evoengine.cli.verbs.landscape import run_record

    raise typer.Exit(run_record(options))


@command(landscape_app)
def show(file: _File, json_output: Json = False) -> None:
    """Show what a landscape holds, and the distribution of its times."""
    from evoengine.cli.verbs.landscape import show_landscape

    show_landscape(file, json_output=json_output)


@command(landscape_app)
def merge(
    files: Annotated[
        tuple[Path, ...], Option("Landscapes of the parts of one space.", metavar="FILE…", positional=True)
    ],
    output: OutputFile,
    force: Force = False,
) -> None:
    """Join landscapes that several GPUs of one type recorded with --part."""
    from evoengine.cli.verbs.landscape import merge_landscapes

    merge_landscapes(files, output, force=force)


@command(landscape_app, "import")
def import_(
    file: _ForeignFile,
    output: OutputFile,
    format: Annotated[  # noqa: A002 - the name of the option
        str, Option("kernel-tuner, t4, ktt or csv; auto recognises the format by the content.")
    ] = "auto",
    force: Force = False,
) -> None:
    """Convert another tuner's results to a landscape."""
    from evoengine.cli.verbs.landscape import import_landscape

    import_landscape(file, output, format, force=force)


@command(landscape_app)
def export(
    file: _File,
    output: OutputFile,
    format: Annotated[str, Option("kernel-tuner or t4.")] = "kernel-tuner",  # noqa: A002 - the name of the option
    family: Annotated[str | None, Option("Family to write, if the landscape has several.")] = None,
    force: Force = False,
) -> None:
    """Write a landscape as a Kernel Tuner cache or as open T4 results."""
    from evoengine.cli.verbs.landscape import export_landscape

    export_landscape(file, output, format, family, force=force)
