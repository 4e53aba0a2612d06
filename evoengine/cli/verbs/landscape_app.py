"""``landscape``: record what every config of a space does, look at it, trade it with other tuners."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evoengine.cli.options import shared_options as options
from evoengine.cli.options.verbosity import is_quiet, takes_verbosity
from evoengine.model import Problem

landscape_app = typer.Typer(
    help="Record whole search spaces; --device replay:FILE then searches them without a GPU.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The landscape.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the file.")]


@landscape_app.command()
@takes_verbosity
@options.takes_problem
def record(
    problem: Problem,
    output: Output,
    count: Annotated[int | None, typer.Option(min=1, help="Distinct kernels to record. [default: 5000]")] = None,
    all_configs: Annotated[bool, typer.Option("--all", help="Record every valid config.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,…", help="The only values of a tunable to consider; may be repeated."),
    ] = None,
    family: options.Family = "auto",
    space: options.SpaceFile = None,
    device: Annotated[str, typer.Option(help="auto, cuda, cuda:0,1, cuda:all or emulator.")] = "auto",
    arch: Annotated[str, typer.Option(help="Architecture to compile for, such as sm_89. [default: the device's]")] = "",
    target: options.TargetName = "l4",
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    small_cases: Annotated[
        bool, typer.Option(help="Check kernels on the gate's small cases too, not only on the problem itself.")
    ] = True,
    samples: Annotated[int, typer.Option(min=6, help="Of each kernel's time; fewer of slow kernels save hours.")] = 30,
    part: Annotated[
        str, typer.Option(metavar="N/OF", help="One part of the configs, as 1/2: for several GPUs; see 'merge'.")
    ] = "1/1",
    workers: Annotated[int, typer.Option(min=0, help="Compile processes, 0 for one per core.")] = 0,
    cold_l2: Annotated[bool, typer.Option("--cold-l2", help="Time with a flushed L2 cache (cuda only).")] = False,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which it pauses.")] = None,
    early: Annotated[
        bool, typer.Option("--early", help="When the time limit ends it, write what there is: a uniform sample.")
    ] = False,
    force: Force = False,
) -> None:
    """Evaluate a space, or a uniform sample of it, into a file; the same command goes on where it stopped."""
    from evoengine.cli.verbs.landscape_record import RecordRequest, run_record
    from evoengine.engine.options import SearchOptions
    from evoengine.engine.subspace import Share
    from evoengine.errors import UsageError

    if all_configs and count is not None:
        raise UsageError("give --count or --all, not both")
    wanted = SearchOptions(
        problem=problem,
        seed=seed,
        family=family,
        space_file=space,
        device=device,
        arch=arch,
        target=target,
        workers=workers,
        cold_l2=cold_l2,
        time_limit_s=time_limit,
    )
    number = None if all_configs else count or 5000
    share = Share.parse(part)
    request = RecordRequest(wanted, output, number, tuple(only or ()), small_cases, force, samples, early, share)
    raise typer.Exit(run_record(request, quiet=is_quiet()))


@landscape_app.command()
@takes_verbosity
def show(file: File, json_output: options.Json = False) -> None:
    """Show what a landscape holds, and how its times are distributed."""
    from evoengine.cli.verbs.landscape import show_landscape

    show_landscape(file, json_output=json_output)


@landscape_app.command()
@takes_verbosity
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Landscapes of parts of one space.")],
    output: Output,
    force: Force = False,
) -> None:
    """Make one landscape of those that several GPUs of one kind have recorded with --part."""
    from evoengine.cli.verbs.landscape import merge_landscapes

    merge_landscapes(files, output, force=force)


@landscape_app.command(name="import")
@takes_verbosity
def import_(
    file: File,
    output: Output,
    format_: Annotated[str, typer.Option("--format", help="kernel-tuner.")] = "kernel-tuner",
    force: Force = False,
) -> None:
    """Make a landscape of another tuner's results."""
    from evoengine.cli.verbs.landscape import import_landscape

    import_landscape(file, output, format_, force=force)


@landscape_app.command()
@takes_verbosity
def export(
    file: File,
    output: Output,
    format_: Annotated[str, typer.Option("--format", help="kernel-tuner or t4.")] = "kernel-tuner",
    family: Annotated[str | None, typer.Option(help="Which family, where the landscape has several.")] = None,
    force: Force = False,
) -> None:
    """Write a landscape as Kernel Tuner's cache, or as open T4 results."""
    from evoengine.cli.verbs.landscape import export_landscape

    export_landscape(file, output, format_, family, force=force)
