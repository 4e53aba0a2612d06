"""``python -m evoengine``: the verbs and the entry point.

This module imports little more than typer. Each verb imports its implementation when it runs, so that ``--help`` is
fast.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from evoengine import __version__
from evoengine.cli.database_commands import database_app
from evoengine.cli.exit_codes import FAILED, INTERRUPTED, NOTHING_FOUND, run_guarded
from evoengine.cli.landscape_commands import landscape_app
from evoengine.cli.leaderboard_commands import leaderboard_app
from evoengine.cli.options.config_file import defaults, read_settings
from evoengine.cli.options.help_panels import PanelCommand, PanelGroup
from evoengine.cli.options.output_options import OutputOptions
from evoengine.cli.options.parameters import command, with_options
from evoengine.cli.output.echo import EchoHandler, echo
from evoengine.engine.options.evolution import EvolveOptions, LineageOptions
from evoengine.engine.options.fields import Json, Option, Panel
from evoengine.engine.options.model import ModelOptions
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.options.verbs import (
    CompareOptions,
    DashboardOptions,
    ExportOptions,
    LockOptions,
    ProfileOptions,
    ReportOptions,
    SelftestOptions,
    SpaceOptions,
    TuneModelOptions,
    VerifyOptions,
)
from evoengine.errors import UsageError
from evoengine.system.garbage_collection import collect_rarely
from evoengine.system.temporary import sweep_temporary_folders

app = typer.Typer(
    cls=PanelGroup,
    help="EvoEngine finds the fastest correct fused-attention CUDA kernel for one problem on one GPU.",
    epilog="Exit codes: 0 done, 1 nothing found, or a check failed, 2 usage or environment error (an option, a file, a "
    "full disk), 3 the device is lost, 70 internal error; please report it, 130 interrupted. Recorded results are kept "
    "in every case. Defaults of options are read from evoengine.toml and from evoengine/config.toml in the user's "
    "configuration folder; 'doctor' lists them. NO_COLOR is honoured; --install-completion sets up completion in the "
    "shell.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def main() -> NoReturn:
    """Runs the command line and exits with a code of :mod:`evoengine.cli.exit_codes`."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # workers use all cores; idle threads of a library would spin
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    collect_rarely()
    logging.lastResort = EchoHandler(logging.WARNING)
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    code = run_guarded(lambda: _call(arguments), debug=debug)
    if code == INTERRUPTED:  # Python would wait for threads, and a signal meanwhile would end in a traceback
        os._exit(code)
    sys.exit(code)


@cache
def root_command() -> Any:
    """Builds the tree of verbs and options, once in a process: a program that makes many calls saves 30 ms of each."""
    return typer.main.get_command(app)


def _call(arguments: list[str]) -> object:
    """Parses and runs one call; the command line wins over the files of defaults."""
    root = root_command()
    if len(arguments) == 1 and getattr(root.commands.get(arguments[0]), "no_args_is_help", False):
        arguments = [*arguments, "--help"]  # or typer would raise its help as an error
    sweep_temporary_folders()
    only_help = not {"--help", "-h", "--version"}.isdisjoint(arguments) or "_EVOENGINE_COMPLETE" in os.environ
    known = {} if only_help else defaults(root, read_settings(root))
    return root(args=arguments, prog_name="evoengine", standalone_mode=False, default_map=known)


def _show_version(wanted: bool) -> None:
    if wanted:
        echo(f"evoengine {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")] = False,
) -> None:
    """Common options. ``main`` removes ``--debug`` from the arguments before typer parses them."""


@dataclass(frozen=True)
class _ProblemFiles:
    """Files that name the problems of a search."""

    workload: Annotated[Path | None, Option("File of weighted problems, searched as one.", panel=Panel.PROBLEM)] = None
    problems: Annotated[
        Path | None,
        Option("File of problems, TOML or an rbk_config.yaml; search each of them.", panel=Panel.PROBLEM),
    ] = None
    cluster_parts: Annotated[
        int,
        Option("Parts of the cluster, each of which searches one of --problems at a time.", min=1, panel=Panel.DEVICE),
    ] = 1


@app.command(cls=PanelCommand)
@with_options
def search(options: SearchOptions, files: _ProblemFiles, output: OutputOptions) -> None:
    """Search for the fastest correct kernel; the same command resumes an interrupted search."""
    from evoengine.engine.options.workload_file import with_workload

    options = with_workload(options, files.workload)
    if files.cluster_parts > 1 and not (options.cluster and files.problems):
        raise UsageError("--cluster-parts divides a cluster among problems: give --cluster and --problems with it")
    if files.problems is not None:
        from evoengine.cli.verbs.problem_set import search_problems

        raise typer.Exit(search_problems(options, output, files.problems, files.cluster_parts))
    if not options.cluster:
        raise typer.Exit(_search(options, output))
    from evoengine.engine.cluster.process import run_in_children

    debug = "--debug" in sys.argv[1:]
    raise typer.Exit(run_in_children([lambda: run_guarded(partial(_search, options, output), debug=debug)]))


def _search(options: SearchOptions, output: OutputOptions) -> int:
    from evoengine.engine.prefetch import early_imports

    with early_imports(options) as early:  # workers import while this process imports the verb
        from evoengine.cli.verbs.search import run_search

        return run_search(options, output, early)


@command(app)
def evolve(options: EvolveOptions, model: ModelOptions, json_output: Json = False) -> None:
    """Change the source of one family by patches, and search each correct variant; the same command goes on."""
    from evoengine.cli.verbs.evolve import run_evolve

    raise typer.Exit(run_evolve(options, model, json_output=json_output))


@command(app)
def lineage(options: LineageOptions, json_output: Json = False) -> None:
    """Show the tree of variants that 'evolve' made, or the ancestors and descendants of one."""
    from evoengine.cli.verbs.lineage import run_lineage

    run_lineage(options, json_output=json_output)


@command(app)
def export(options: ExportOptions) -> None:
    """Write kernels as standalone files: a program, a torch module, a C++ header, or machine code with a manifest."""
    from evoengine.cli.verbs.export import run_export

    run_export(options)


@command(app)
def lock(options: LockOptions, json_output: Json = False) -> None:
    """Write a lockfile of the kernel for each problem and GPU, so that every host of a job uses the same one."""
    from evoengine.cli.verbs.lock import run_lock

    if not run_lock(options, json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)


@command(app, "tune-model")
def tune_model(options: TuneModelOptions, json_output: Json = False) -> None:
    """Search for kernels for all attention calls of a torch model, and write a lockfile of them."""
    from evoengine.cli.verbs.tune_model import run_tune_model

    run_tune_model(options, json_output=json_output)


@command(app)
def profile(options: ProfileOptions, json_output: Json = False) -> None:
    """Show why one kernel is fast or slow: counters by source line, without a GPU."""
    from evoengine.cli.verbs.profile import run_profile

    run_profile(options, json_output=json_output)


@command(app)
def compare(
    options: CompareOptions,
    json_output: Json = False,
    markdown: Annotated[Path | None, Option("Also write the result to this Markdown file.", panel=Panel.OUTPUT)] = None,
) -> None:
    """Time the champion beside every other installed attention library, on the GPU."""
    from evoengine.cli.verbs.compare import run_compare

    run_compare(options, json_output=json_output, markdown_file=markdown)


@command(app)
def verify(options: VerifyOptions, json_output: Json = False) -> None:
    """Measure the best predicted kernels on a GPU and compare the times with the predictions."""
    from evoengine.cli.verbs.verify import run_verify

    raise typer.Exit(run_verify(options, json_output=json_output))


@command(app)
def space(options: SpaceOptions, json_output: Json = False) -> None:
    """Show the tunables and constraints of a family, and the number of valid configs, or check its tunables."""
    from evoengine.cli.verbs.space import run_space
    from evoengine.cli.verbs.space_check import run_check

    if options.check is None:
        run_space(options, json_output=json_output)
    elif not run_check(options, json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)


@command(app)
def doctor(json_output: Json = False) -> None:
    """Show what this machine has and lacks, with the command that fixes each problem."""
    from evoengine.cli.verbs.doctor import run_doctor

    if not run_doctor(settings=read_settings(root_command()), json_output=json_output):
        raise typer.Exit(FAILED)


@command(app)
def selftest(options: SelftestOptions, json_output: Json = False) -> None:
    """Test the parity gate on known-wrong and random valid kernels, or the acceptance rule with --null."""
    from evoengine.cli.verbs.selftest import run_null_control, run_selftest

    run = run_null_control if options.null else run_selftest
    if not run(options, json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)


@command(app)
def report(options: ReportOptions, json_output: Json = False) -> None:
    """Write the studies as an HTML page that opens offline."""
    from evoengine.cli.verbs.report import run_report

    run_report(options, json_output=json_output)


@command(app)
def dashboard(options: DashboardOptions) -> None:
    """Serve Optuna's dashboard of the leaderboard's studies on this machine, until Ctrl-C."""
    from evoengine.cli.verbs.dashboard import run_dashboard

    run_dashboard(options)


app.add_typer(leaderboard_app, name="leaderboard")
app.add_typer(landscape_app, name="landscape")
app.add_typer(database_app, name="db")
