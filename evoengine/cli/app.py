"""``python -m evoengine``: the verbs, and how every way to fail becomes one line and an exit code.

Nothing here imports more than typer; each verb imports its room when it runs, so ``--help`` is instant.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from evoengine import __version__
from evoengine.cli.exit_codes import FAILED, NOTHING_FOUND, run_guarded
from evoengine.cli.options import shared_options as options
from evoengine.cli.options.config_file import defaults, read_settings
from evoengine.cli.options.measurement_options import MeasurementOptions, takes_measurement_options
from evoengine.cli.options.output_options import OutputOptions, takes_output_options
from evoengine.cli.options.verbosity import is_quiet, takes_verbosity
from evoengine.cli.verbs.landscape_app import landscape_app
from evoengine.cli.verbs.leaderboard_app import leaderboard_app
from evoengine.errors import UsageError
from evoengine.model import Problem

app = typer.Typer(
    help="EvoEngine finds the fastest correct fused-attention CUDA kernel for one problem on one GPU.",
    epilog="Exit codes: 0 done, 1 no correct kernel found, 2 something to mend (a flag, a file, a full disk), 3 the "
    "device does not come back, 70 a fault of ours, 130 interrupted. What a search has recorded stays in every case. "
    "Defaults of options can stand in evoengine.toml, or in evoengine/config.toml of the user's configuration folder; "
    "'doctor' shows what is in force. NO_COLOR is honoured; --install-completion makes the shell complete words.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
app.add_typer(leaderboard_app, name="leaderboard")
app.add_typer(landscape_app, name="landscape")


def main() -> NoReturn:
    """Runs the command line and exits, with a code of :mod:`evoengine.cli.exit_codes`."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # workers take the cores, and idle threads of a library would spin there
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    sys.exit(run_guarded(lambda: _call(arguments), debug=debug))


def _call(arguments: list[str]) -> object:
    """Parses and runs one call; what the files of defaults say stands behind what the arguments say."""
    command: Any = typer.main.get_command(app)
    if len(arguments) == 1 and getattr(command.commands.get(arguments[0]), "no_args_is_help", False):
        arguments = [*arguments, "--help"]  # or typer would raise its help as an error
    asks_only = not {"--help", "-h", "--version"}.isdisjoint(arguments) or "_EVOENGINE_COMPLETE" in os.environ
    known = {} if asks_only else defaults(command, read_settings(command))
    return command(args=arguments, prog_name="evoengine", standalone_mode=False, default_map=known)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evoengine {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")] = False,
) -> None:
    """Common options; ``--debug`` is taken out of the arguments before typer sees them."""


@app.command()
@options.takes_problem
@takes_measurement_options
@takes_output_options
def search(
    problem: Problem,
    judging: MeasurementOptions,
    voice: OutputOptions,
    budget: Annotated[int, typer.Option(min=1, help="Distinct candidates to evaluate.")] = 500,
    strategy: Annotated[
        str, typer.Option(help="evolution, tpe, cmaes or random, or package.module:Class.")
    ] = "evolution",
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness of the search.")] = 0,
    family: options.Family = "auto",
    space: options.SpaceFile = None,
    device: options.Device = "auto",
    arch: Annotated[str, typer.Option(help="Architecture to compile for, such as sm_89. [default: the device's]")] = "",
    target: options.TargetName = "l4",
    db: options.Database = options.DEFAULT_DB,
    starts: Annotated[bool, typer.Option(help="Begin with the good configs that the search spaces name.")] = True,
    forecast: Annotated[bool, typer.Option(help="Begin with what the latency model expects to be fast.")] = True,
    skip: Annotated[bool, typer.Option(help="Pass over what the latency model finds hopeless.")] = True,
    transfer: Annotated[
        bool, typer.Option(help="Begin with what the leaderboard holds for near problems and other GPUs.")
    ] = True,
    workers: Annotated[int, typer.Option(min=0, help="Compile processes, 0 for one per core.")] = 0,
    compile_limit: Annotated[float, typer.Option(min=1.0, help="Seconds that one compilation may take.")] = 120.0,
    workload: Annotated[Path | None, typer.Option(help="File of weighted problems, searched as one.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which the search stops.")] = None,
    problems: Annotated[
        Path | None, typer.Option(help="rbk_config.yaml: search for each of its problems, one after the other.")
    ] = None,
) -> None:
    """Search for the fastest correct kernel; the same command resumes where it stopped."""
    from evoengine.cli.verbs.search_start import search_at_once
    from evoengine.engine.options import SearchOptions
    from evoengine.engine.workload_file import chosen_workload

    chosen, problem = chosen_workload(workload, problem)
    request = SearchOptions(
        problem=problem,
        budget=budget,
        strategy=strategy,
        seed=seed,
        family=family,
        space_file=space,
        device=device,
        arch=arch,
        target=target,
        db=db,
        starts=starts,
        forecast=forecast,
        skip=skip,
        transfer=transfer,
        workers=workers,
        compile_limit_s=compile_limit,
        workload=chosen,
        time_limit_s=time_limit,
        **vars(judging),
    )
    if problems is not None:
        from evoengine.cli.verbs.search_problems import run_problem_set

        raise typer.Exit(run_problem_set(request, voice, problems, options.named_problem()))
    raise typer.Exit(search_at_once(request, voice))


@app.command()
@takes_verbosity
def export(
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - for the terminal.")],
    row_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Row to export.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Export the champion instead of a row by its id.")] = False,
    format: Annotated[  # noqa: A002 - the name of the option
        str, typer.Option(help="cu (checks and times itself), torch (a module), header (C++), cubin or ptx.")
    ] = "cu",
    problem: Annotated[str | None, typer.Option(help="With --best: of this problem. [default: the newest]")] = None,
    problems: Annotated[
        str | None, typer.Option(metavar="P,P,…", help="The best of each problem in one file: torch and header.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The same for all problems of the newest row's device.")] = False,
    device: Annotated[str | None, typer.Option(help="Of this device, by kind or name.")] = None,
    db: options.Database = options.DEFAULT_DB,
    space: options.SpaceFile = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Write kernels as files of their own: a program, a torch module, a C++ header, or machine code with a manifest."""
    from evoengine.cli.verbs.export import ExportRequest, run_export

    run_export(ExportRequest(output, row_id, best, format, problem, problems, every, device, db, force, space))


@app.command()
@takes_verbosity
def lock(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("evoengine.lock"),
    problem: Annotated[str | None, typer.Option(help="Only this problem: a name, a shape or a key.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Only this GPU: part of its name.")] = None,
    db: options.Database = options.DEFAULT_DB,
    check: Annotated[bool, typer.Option("--check", help="Write nothing: does the file say what it would say?")] = False,
    json_output: options.Json = False,
) -> None:
    """Write which kernel each problem uses on each GPU, so that every host of a job picks the same one."""
    from evoengine.cli.verbs.lock import LockRequest, run_lock

    if not run_lock(LockRequest(output, problem, gpu, db, check), json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)


@app.command()
@takes_verbosity
def profile(
    row_id: Annotated[int, typer.Argument(metavar="ID", help="Row to look into; 'leaderboard' lists the ids.")],
    db: options.Database = options.DEFAULT_DB,
    lines: Annotated[int, typer.Option(min=1, help="Most expensive source lines to show.")] = 12,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print its PTX instead.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its machine code instead; needs nvdisasm.")] = False,
    ncu: Annotated[bool, typer.Option("--ncu", help="Show hardware counters; at first needs a GPU and ncu.")] = False,
    again: Annotated[bool, typer.Option("--again", help="With --ncu: count anew what was counted before.")] = False,
    space: options.SpaceFile = None,
    json_output: options.Json = False,
) -> None:
    """Show why one kernel is fast or slow: counters by source line, without a GPU."""
    from evoengine.cli.verbs.profile import ProfileRequest, View, run_profile

    if ptx + sass + ncu > 1:
        raise UsageError("--ptx, --sass and --ncu each print something else: give one")
    if again and not ncu:
        raise UsageError("--again is for --ncu")
    view: View = "ptx" if ptx else "sass" if sass else "ncu" if ncu else "counters"
    run_profile(ProfileRequest(row_id, db, view, lines, space, again), json_output=json_output)


@app.command()
@takes_verbosity
@options.takes_problem
def compare(
    problem: Problem,
    db: options.Database = options.DEFAULT_DB,
    row_id: Annotated[int | None, typer.Option("--id", help="Our row. [default: the problem's champion]")] = None,
    peers: Annotated[str | None, typer.Option(help="Comma-separated names. [default: all]")] = None,
    calls: Annotated[int | None, typer.Option(min=1, help="Calls in one graph. [default: by size]")] = None,
    samples: Annotated[int | None, typer.Option(min=6, help="Replays of each graph. [default: 30]")] = None,
    cold_l2: Annotated[bool, typer.Option("--cold-l2", help="Time with a flushed L2 cache.")] = False,
    json_output: options.Json = False,
    space: options.SpaceFile = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the page to this file as well.")] = None,
) -> None:
    """Time our kernel beside every other attention library that is installed, on the GPU."""
    from evoengine.cli.verbs.compare import CompareRequest, run_compare

    request = CompareRequest(problem, db, row_id, peers, calls, samples, cold_l2, space)
    run_compare(request, json_output=json_output, markdown_file=markdown)


@app.command()
@takes_verbosity
@options.takes_problem
def verify(
    problem: Problem,
    top: Annotated[int, typer.Option(min=1, help="Predicted elites to measure.")] = 20,
    db: options.Database = options.DEFAULT_DB,
    device: Annotated[str, typer.Option(help="auto, cuda, cuda:0,1, cuda:all, or replay:FILE.")] = "auto",
    target: Annotated[
        str | None, typer.Option(help="Predictions for this GPU. [default: that of the newest prediction]")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which it stops.")] = None,
    json_output: options.Json = False,
) -> None:
    """Measure the best predicted kernels on a GPU, and say how the predictions held."""
    from evoengine.cli.verbs.verify import VerifyRequest, run_verify
    from evoengine.engine.options import SearchOptions

    search = SearchOptions(problem, device=device, db=db, strategy="random", time_limit_s=time_limit, racing=False)
    raise typer.Exit(run_verify(VerifyRequest(search, top, target), json_output=json_output, quiet=is_quiet()))


@app.command()
@takes_verbosity
@options.takes_problem
def space(
    problem: Problem,
    family: options.Family = "mma",
    space: options.SpaceFile = None,
    target: options.TargetName = "l4",
    json_output: options.Json = False,
) -> None:
    """Show the tunables of a family, the constraints, and how many configs are valid."""
    from evoengine.cli.verbs.space import run_space

    run_space(problem, family, space, target, json_output=json_output)


@app.command()
@takes_verbosity
def doctor(json_output: options.Json = False) -> None:
    """Show what this machine has and lacks, with the command that fixes it."""
    from evoengine.cli.verbs.doctor import run_doctor

    if not run_doctor(settings=read_settings(typer.main.get_command(app)), json_output=json_output):
        raise typer.Exit(FAILED)


@app.command()
@takes_verbosity
def selftest(
    device: Annotated[str, typer.Option(help="auto, cuda, cuda:0,1, cuda:all or emulator.")] = "auto",
    honest: Annotated[int, typer.Option(min=0, help="Random valid configs that must pass.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of inputs and configs.")] = 0,
    mutants: Annotated[str | None, typer.Option(help="Comma-separated names. [default: all]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Keeps outcomes; a later run goes on with them.")] = None,
    null: Annotated[bool, typer.Option("--null", help="Search a space of equals: nobody may be crowned.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="With --null: searches.")] = 20,
    budget: Annotated[int, typer.Option(min=1, max=1000, help="With --null: candidates of each.")] = 500,
    strategy: Annotated[str, typer.Option(help="With --null: what searches.")] = "evolution",
    json_output: options.Json = False,
) -> None:
    """Try the parity gate on kernels that are known to be wrong, and on honest ones; or try the rule of acceptance."""
    if null:
        from evoengine.cli.verbs.selftest_null import NullRequest, run_null_control

        if not run_null_control(NullRequest(device, runs, budget, seed, strategy), json_output=json_output):
            raise typer.Exit(NOTHING_FOUND)
        return
    from evoengine.cli.verbs.selftest import SelftestRequest, run_selftest

    if not run_selftest(SelftestRequest(device, honest, seed, mutants, resume), json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)


@app.command()
@takes_verbosity
def report(
    study: Annotated[int | None, typer.Argument(metavar="[STUDY]", help="Study. [default: the newest]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
    db: options.Database = options.DEFAULT_DB,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
    json_output: options.Json = False,
) -> None:
    """Write one study as an HTML page that opens offline."""
    from evoengine.cli.verbs.report import run_report

    run_report(study, output=output, db=db, force=force, json_output=json_output)


@app.command()
@takes_verbosity
def dashboard(
    db: options.Database = options.DEFAULT_DB,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine, 0 for a free one.")] = 8080,
) -> None:
    """Serve Optuna's dashboard of the leaderboard's studies on this machine, until Ctrl-C."""
    from evoengine.cli.verbs.dashboard import run_dashboard

    run_dashboard(db, port)
