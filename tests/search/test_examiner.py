"""The whole pipeline on the emulator: every status a candidate can end with, through the methods of the workers."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import (
    CandidateError,
    CandidateTimeoutError,
    CompileError,
    LaunchError,
    RenderError,
    ResourceError,
    WorkerCrashError,
)
from evoengine.model import Config, Evaluation, Problem, Status
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.jobs import Examine, perform
from evoengine.search.candidate.results import Candidate, conclude
from evoengine.search.candidate.setup import Setup, SetupRequest, prepare
from evoengine.space.loader import load_space
from evoengine.target import get_target

pytestmark = pytest.mark.slow

PROBLEM = Problem(1, 2, 128, 64)
ROOT = Path(__file__).resolve().parents[2]
SPACE = load_space(ROOT / "search_spaces" / "mma.toml")


def _config(index: int = 0) -> Config:
    return SPACE.build(PROBLEM, get_target("l4")).config(index)


def _builder(templates: Path = ROOT / "templates", problem: Problem = PROBLEM) -> Builder:
    return Builder(BuildSetup((problem,), get_target("l4"), "sm_89", (SPACE,), (templates,), None))


def evaluate(config: Config, builder: Builder, examiner: Examiner) -> Evaluation:
    """Runs the whole pipeline for one config in this process."""
    compilation = builder.build(config)
    candidate = compilation.candidate
    return conclude(compilation, examiner.examine(candidate) if candidate is not None else None)


def _broken_templates(folder: Path, old: str, new: str) -> Path:
    templates = folder / "templates"
    shutil.copytree(ROOT / "templates", templates)
    files = [*(templates / "mma").iterdir(), *(templates / "partials" / "flash").iterdir()]
    (file,) = (file for file in files if old in file.read_text())
    file.write_text(file.read_text().replace(old, new))
    return templates


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(SetupRequest(PROBLEM, DeviceSpec("emulator"), inputs_seed=3))


@pytest.fixture(scope="module")
def examiner(setup: Setup) -> Iterator[Examiner]:
    opened = Examiner(pickle.loads(pickle.dumps(setup)))
    yield opened
    opened.close()


def test_a_good_candidate_has_everything_a_row_needs(examiner: Examiner) -> None:
    row = evaluate(_config(), _builder(), examiner)
    assert row.status is Status.OK, row.reason
    assert row.ok
    assert row.source_hash
    assert row.code_hash
    assert row.template_hash
    assert "evo_attention" in row.source
    assert row.resources is not None
    assert row.resources.registers > 0
    assert row.verdict is not None
    assert row.verdict.passed
    assert row.verdict.worst_case
    assert row.verdict.inputs_seed == 3
    assert row.timing is not None
    assert row.timing.predicted
    assert row.timing.median_us > 0
    assert row.timing.baseline_us is None
    assert set(row.stage_seconds) == {"render", "compile", "load", "parity", "bench", "recheck"}
    assert row.notes == ()


def test_inputs_are_fresh_unless_a_seed_is_given(setup: Setup) -> None:
    one, other = (prepare(SetupRequest(Problem(1, 1, 16, 64), DeviceSpec("emulator"))).parts[0].pool for _ in range(2))
    assert one.seed != other.seed
    pool = setup.parts[0].pool
    again = prepare(SetupRequest(PROBLEM, DeviceSpec("emulator"), inputs_seed=pool.seed)).parts[0].pool
    assert (again.problem.inputs.q == pool.problem.inputs.q).all()
    assert [case.name for case in again.draw("x").gate] == [case.name for case in pool.draw("x").gate]


def test_a_prediction_that_cannot_win_is_rechecked_too(examiner: Examiner) -> None:
    compilation = _builder().build(_config())
    assert compilation.candidate is not None
    row = conclude(compilation, examiner.examine(compilation.candidate, champion_us=1e-6))
    assert row.ok
    assert "recheck" in row.stage_seconds


def test_source_that_does_not_compile(tmp_path: Path, examiner: Examiner) -> None:
    templates = _broken_templates(tmp_path, 'extern "C" __global__ void', 'no such thing;\nextern "C" __global__ void')
    row = evaluate(_config(), _builder(templates), examiner)
    assert row.status is Status.COMPILE_FAILED
    assert row.reason
    assert "\n" not in row.reason
    assert row.source
    assert row.resources is None


def test_a_template_that_does_not_render(tmp_path: Path, examiner: Examiner) -> None:
    templates = _broken_templates(tmp_path, 'extern "C" __global__ void', "@{ NO_SUCH_NAME }@ __global__ void")
    row = evaluate(_config(), _builder(templates), examiner)
    assert row.status is Status.RENDER_FAILED
    assert "NO_SUCH_NAME" in row.reason
    assert row.source == ""


def test_a_binary_that_does_not_fit(examiner: Examiner) -> None:
    small = replace(get_target("l4"), smem_per_block_bytes=1024)
    builder = Builder(BuildSetup((PROBLEM,), small, "sm_89", (SPACE,), (ROOT / "templates",), None))
    row = evaluate(_config(), builder, examiner)
    assert row.status is Status.RESOURCE_LIMIT
    assert "shared memory" in row.reason
    assert row.resources is not None
    assert row.timing is None


def test_a_wrong_kernel_is_rejected_and_never_timed(tmp_path: Path, examiner: Examiner) -> None:
    templates = _broken_templates(tmp_path, "acc.o[atom][tile][2 * half + i] *= rescale;", ";")
    valid = SPACE.build(PROBLEM, get_target("l4"))
    several_tiles = next(
        config
        for config in map(valid.config, range(valid.size))
        if int(config["BLOCK_N"]) * int(config["WARPS_N"]) <= 64
    )
    row = evaluate(several_tiles, _builder(templates), examiner)
    assert row.status is Status.PARITY_FAILED
    assert row.reason
    assert row.verdict is not None
    assert not row.verdict.passed
    assert row.timing is None
    assert "bench" not in row.stage_seconds


def test_a_kernel_that_faults(tmp_path: Path, examiner: Examiner) -> None:
    templates = _broken_templates(
        tmp_path,
        "g_o = static_cast<unsigned short*>(p.o) +",
        "g_o = static_cast<unsigned short*>(p.o) + (1ll << 40) +",
    )
    row = evaluate(_config(), _builder(templates), examiner)
    assert row.status is Status.LAUNCH_FAILED
    assert "\n" not in row.reason
    assert row.timing is None


def test_a_kernel_that_fails_the_recheck(setup: Setup) -> None:
    """The recheck is a gate of its own: with an impossible tolerance there, a candidate fails after timing."""
    (part,) = setup.parts
    impossible = tuple(
        replace(case, bounds=replace(case.bounds, max_error=case.bounds.max_error * 0)) for case in part.pool.rechecks
    )
    examiner = Examiner(replace(setup, parts=(replace(part, pool=replace(part.pool, rechecks=impossible)),)))
    row = evaluate(_config(), _builder(), examiner)
    assert row.status is Status.PARITY_FAILED
    assert row.reason.startswith("after timing")
    assert row.timing is None


def test_predictions_duel_once(examiner: Examiner) -> None:
    candidates: list[Candidate] = []
    for index in (0, 5000):
        candidate = _builder().build(_config(index)).candidate
        assert candidate is not None
        candidates.append(candidate)
    times = [examiner.examine(candidate).timing for candidate in candidates]
    assert times[0] is not None
    assert times[1] is not None
    duel = examiner.challenge(*candidates)
    assert duel.challenger_us == (times[0].median_us,)
    assert duel.champion_us == (times[1].median_us,)
    assert duel.accepted == (duel.gain >= 0.03)
    assert not examiner.challenge(candidates[0], candidates[0]).accepted


def test_nothing_is_measured_beside_a_prediction(examiner: Examiner) -> None:
    assert examiner.baselines() == ()
    assert examiner.info.predicted
    assert examiner.info.name == get_target("l4").marketing_name


def test_a_compiled_candidate_is_not_concluded_unexamined() -> None:
    with pytest.raises(ValueError, match="must be examined"):
        conclude(_builder().build(_config()))


def test_what_workers_exchange_survives_pickling(setup: Setup, examiner: Examiner) -> None:
    compilation = pickle.loads(pickle.dumps(_builder().build(_config())))
    job = pickle.loads(pickle.dumps(Examine(compilation.candidate)))
    examination = pickle.loads(pickle.dumps(perform(examiner, job)))
    assert conclude(compilation, examination).ok
    assert pickle.loads(pickle.dumps(setup)).parts[0].plan == setup.parts[0].plan


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RenderError("x"), Status.RENDER_FAILED),
        (CompileError("x"), Status.COMPILE_FAILED),
        (ResourceError("x"), Status.RESOURCE_LIMIT),
        (LaunchError("x"), Status.LAUNCH_FAILED),
        (CandidateTimeoutError("x"), Status.TIMEOUT),
        (WorkerCrashError("x"), Status.CRASHED),
    ],
)
def test_every_candidate_error_has_a_status(error: CandidateError, status: Status) -> None:
    assert error.status is status
