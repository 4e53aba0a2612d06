"""Command line that repeats a study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from evoengine.documents.escaping import shell_word
from evoengine.leaderboard.records import REPLAY_PRIORS, Study
from evoengine.model import DType, Problem, is_variant
from evoengine.target import TARGETS

_COLD: Final = "-cold"
_EAGER: Final = "eager-"


def search_command(study: Study, budget: int, program: str = "evoengine") -> str:
    """Returns the shell command of a search with the study's problem, device, families, strategy and seed.

    The paths of workload and landscape files are not stored; ``FILE`` stands for them.

    Args:
        study: Study to repeat.
        budget: Number of distinct candidates.
        program: Command that starts EvoEngine.
    """
    subject = problem_options(study.key.problem) if study.key.workload is None else iter(("--workload", "FILE"))
    words = (*program.split(), "search", *subject, *_study_options(study, budget))
    return " ".join(map(shell_word, words))


def problem_options(problem: Problem) -> Iterator[str]:
    """Yields the command-line options of a problem."""
    yield from ("--problem", f"{problem.batch}x{problem.heads}x{problem.seq_q}x{problem.head_dim}")
    if problem.kv_heads != problem.heads:
        yield from ("--kv-heads", str(problem.kv_heads))
    if problem.packed:
        yield from ("--lengths", ",".join(map(str, problem.lengths_q)))
        if problem.lengths_kv != problem.lengths_q:
            yield from ("--lengths-kv", ",".join(map(str, problem.lengths_kv)))
    elif problem.seq_kv != problem.seq_q:
        yield from ("--seq-kv", str(problem.seq_kv))
    if problem.dtype is not DType.FP16:
        yield from ("--dtype", problem.dtype.value)
    if problem.window_left is not None or problem.window_right is not None:
        # 0 on the right is the causal mask: --causal and a window on the right exclude each other.
        right = 0 if problem.causal else problem.window_right
        yield from ("--window", f"{_side(problem.window_left)},{_side(right)}")
    elif problem.causal:
        yield "--causal"
    if problem.softcap:
        yield from ("--softcap", str(problem.softcap))
    if problem.sink:
        yield "--sink"
    if problem.lse:
        yield "--lse"


def _side(keys: int | None) -> str:
    return "inf" if keys is None else str(keys)


def _study_options(study: Study, budget: int) -> Iterator[str]:
    key = study.key
    yield from ("--family", key.family, "--strategy", key.strategy, "--seed", str(key.seed), "--budget", str(budget))
    if is_variant(key.family):
        yield "--variants"
    if key.device.kind == "replay":
        yield from ("--device", "replay:FILE")
        yield from (f"--{prior}" for prior in key.device.name.partition(REPLAY_PRIORS)[2].split(", ") if prior)
        return
    yield from ("--device", key.device.kind, "--arch", key.device.arch)
    if key.device.predicted:
        names = {target.marketing_name: target.name for target in TARGETS.values()}
        yield from ("--target", names.get(key.device.name, key.device.name))
    if key.method.startswith(_EAGER):
        yield "--eager"
    if key.method.endswith(_COLD):
        yield "--cold-l2"
