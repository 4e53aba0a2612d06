"""``python -m evoengine``: the verbs, and how every way to fail becomes one line and an exit code.

Nothing here imports more than typer; each verb imports its room when it runs, so ``--help`` is instant.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from evoengine import __version__
from evoengine.cli import options
from evoengine.cli.exits import FAILED, NOTHING_FOUND, run_guarded
from evoengine.cli.leaderboard_app import leaderboard_app
from evoengine.model import Problem

app = typer.Typer(
    help="EvoEngine finds the fastest correct fused-attention CUDA kernel for one problem on one GPU.",
    epilog="Exit codes: 0 done, 1 no correct kernel found, 2 something to mend (a flag, a file, a full disk), 3 the "
    "device does not come back, 70 a fault of ours, 130 interrupted. What a search has recorded stays in every case.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
app.add_typer(leaderboard_app, name="leaderboard")


def main() -> NoReturn:
    """Runs the command line and exits, with a code of :mod:`evoengine.cli.exits`."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # workers take the cores, and idle threads of a library would spin there
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    sys.exit(run_guarded(lambda: app(args=arguments, prog_name="evoengine", standalone_mode=False), debug=debug))


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
def search(
    problem: Problem,
    budget: Annotated[int, typer.Option(min=1, help="Distinct candidates to evaluate.")] = 500,
    strategy: Annotated[str, typer.Option(help="evolution, tpe or random.")] = "evolution",
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness of the search.")] = 0,
    inputs_seed: Annotated[
        int | None, typer.Option(min=0, help="Of the inputs that kernels are checked on. [default: a fresh one]")
    ] = None,
    family: options.Family = "auto",
    space: options.SpaceFile = None,
    device: Annotated[str, typer.Option(help="auto, cuda or emulator.")] = "auto",
    arch: Annotated[str, typer.Option(help="Architecture to compile for, such as sm_89. [default: the device's]")] = "",
    target: options.TargetName = "l4",
    db: options.Database = options.DEFAULT_DB,
    starts: Annotated[bool, typer.Option(help="Begin with the good configs that the search spaces name.")] = True,
    accept: Annotated[float, typer.Option(min=0.0, max=1.0, help="Gain that dethrones a champion.")] = 0.03,
    workers: Annotated[int, typer.Option(min=0, help="Compile processes, 0 for one per core.")] = 0,
    compile_limit: Annotated[float, typer.Option(min=1.0, help="Seconds that one compilation may take.")] = 120.0,
    cold_l2: Annotated[bool, typer.Option("--cold-l2", help="Time with a flushed L2 cache (cuda only).")] = False,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Seconds after which the search stops.")] = None,
    json_output: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Search for the fastest correct kernel; the same command resumes where it stopped."""
    from evoengine.cli.request import SearchRequest
    from evoengine.cli.search_verb import run_search

    request = SearchRequest(
        problem=problem,
        budget=budget,
        strategy=strategy,
        seed=seed,
        inputs_seed=inputs_seed,
        family=family,
        space_file=space,
        device=device,
        arch=arch,
        target=target,
        db=db,
        starts=starts,
        accept=accept,
        workers=workers,
        compile_limit_s=compile_limit,
        cold_l2=cold_l2,
        time_limit_s=time_limit,
    )
    raise typer.Exit(run_search(request, json_output=json_output, quiet=quiet))


@app.command()
def export(
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - for the terminal.")],
    row_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Row to export.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Export the champion instead of a row by its id.")] = False,
    problem: Annotated[str | None, typer.Option(help="With --best: of this problem. [default: the newest]")] = None,
    device: Annotated[str | None, typer.Option(help="With --best: of this device, by kind or name.")] = None,
    db: options.Database = options.DEFAULT_DB,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Write one kernel as a self-contained .cu file that checks and times itself."""
    from evoengine.cli.export_verb import run_export

    run_export(row_id, best=best, output=output, problem=problem, device=device, db=db, force=force)


@app.command()
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
    markdown: Annotated[Path | None, typer.Option(help="Write the page to this file as well.")] = None,
) -> None:
    """Time our kernel beside every other attention library that is installed, on the GPU."""
    from evoengine.cli.compare_verb import CompareRequest, run_compare

    request = CompareRequest(problem, db, row_id, peers, calls, samples, cold_l2)
    run_compare(request, json_output=json_output, markdown_file=markdown)


@app.command()
@options.takes_problem
def space(
    problem: Problem,
    family: options.Family = "mma",
    space: options.SpaceFile = None,
    target: options.TargetName = "l4",
    json_output: options.Json = False,
) -> None:
    """Show the tunables of a family, the constraints, and how many configs are valid."""
    from evoengine.cli.space_verb import run_space

    run_space(problem, family, space, target, json_output=json_output)


@app.command()
def doctor(json_output: options.Json = False) -> None:
    """Show what this machine has and lacks, with the command that fixes it."""
    from evoengine.cli.doctor_verb import run_doctor

    if not run_doctor(json_output=json_output):
        raise typer.Exit(FAILED)


@app.command()
def selftest(
    device: Annotated[str, typer.Option(help="auto, cuda or emulator.")] = "auto",
    honest: Annotated[int, typer.Option(min=0, help="Random valid configs that must pass.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of inputs and configs.")] = 0,
    mutants: Annotated[str | None, typer.Option(help="Comma-separated names. [default: all]")] = None,
    json_output: options.Json = False,
) -> None:
    """Try the parity gate on kernels that are known to be wrong, and on honest ones."""
    from evoengine.cli.selftest_verb import SelftestRequest, run_selftest

    if not run_selftest(SelftestRequest(device, honest, seed, mutants), json_output=json_output):
        raise typer.Exit(NOTHING_FOUND)
