"""The inspection: required of every champion, and failed by kernels that are correct only by chance."""

from __future__ import annotations

import functools
import pickle
import re
from concurrent.futures import Future
from contextlib import closing
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatedKernel, EmulatorDevice
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import DefectError, LaunchError, WorkerCrashError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import fingerprint
from evoengine.parity.inputs.pool import CasePool
from evoengine.parity.mutants import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import MutantEdit, mutate
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.inspection import EmulatedInspector, inspector_service, joint_inspection
from evoengine.search.candidate.results import Candidate, Inspection
from evoengine.search.candidate.setup import Setup, SetupRequest, prepare
from evoengine.search.events import ChallengeRejected, ChampionAccepted
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.made_once import made_once
from tests.search.synthetic import Listener, SyntheticCompiler, SyntheticExaminer, study_key

pytestmark = pytest.mark.slow

H200 = get_target("h200")
RACY = next(mutant for mutant in MUTANTS if mutant.name == "no-barrier-before-the-merge")
PROBLEM = replace(SETUPS[RACY.setup].problem, head_dim=32)


@functools.cache
def build(mutant: str = "", arch: str = "sm_90") -> Kernel:
    """A kernel of the mma family for the H200, or the mutant of it with this name."""
    edits = next((item.edits for item in MUTANTS if item.name == mutant), ())
    space = find_space("mma")
    config = space.config(SETUPS[RACY.setup].values)
    good = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, H200)
    source = mutate(good, edits)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, arch))


@pytest.fixture(scope="module")
def setups(shared_cache: Path) -> tuple[Setup, Setup]:
    """A setup with all cases, and one whose pool has no small cases: a draw is then the problem alone."""

    def make(folder: Path) -> None:
        whole = prepare(SetupRequest(PROBLEM, DeviceSpec("emulator", target="h200"), inputs_seed=7))
        (part,) = whole.parts
        assert part.pool.large
        few = copy(part.pool)  # unlike that of replace(), it has the large cases, which take seconds to compute
        vars(few).update(shapes=(), steep=())
        pair = (whole, replace(whole, parts=(replace(part, pool=few),)))
        (folder / "setups.pickle").write_bytes(pickle.dumps(pair))

    folder = made_once(shared_cache / "inspected", make)
    pair: tuple[Setup, Setup] = pickle.loads((folder / "setups.pickle").read_bytes())
    return pair


@pytest.fixture(scope="module")
def setup(setups: tuple[Setup, Setup]) -> Setup:
    return setups[0]


@pytest.fixture(scope="module")
def pool(setup: Setup) -> CasePool:
    return setup.parts[0].pool


@pytest.fixture(scope="module")
def few_setup(setups: tuple[Setup, Setup]) -> Setup:
    return setups[1]


@pytest.fixture(scope="module")
def few(few_setup: Setup) -> CasePool:
    return few_setup.parts[0].pool


# -- on the emulator --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_good_kernel_for_the_h200_passes_on_the_emulator(few: CasePool) -> None:
    assert EmulatedInspector((few,), H200).inspect(Candidate((build(),))) == Inspection()


def test_a_race_is_found_although_the_numbers_are_right(pool: CasePool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = build(RACY.name)
    with monkeypatch.context() as unchecked:
        unchecked.setattr("evoengine.costmodel.device.RACE_CHECK_FLOPS", 0)
        gate = pool.draw(kernel.source.source_hash).gate
        assert run_gate(EmulatorDevice(H200).load(kernel), gate).passed, "as a GPU may well run it"
    inspection = EmulatedInspector((pool,), H200).inspect(Candidate((kernel,)))
    assert "data_race" in inspection.finding
    assert inspection.notes == ()


def test_lanes_are_checked_in_later_cases_of_a_finalist(pool: CasePool, few_setup: Setup) -> None:
    """A barrier of the warp is missing in the case of few queries and many keys, and in the tall one; both are late."""
    entry = re.compile(r"evo_attention\(const __grid_constant__ AttentionParams p\)\s*\{")
    exchange = """
    __shared__ volatile int seen[1024];
    seen[threadIdx.x] = threadIdx.x;
    if ((p.seq_q > 8 || p.seq_kv < 64) && (p.seq_q < 256 || p.seq_kv != 20)) __syncwarp();
    if (seen[threadIdx.x ^ 5] > 1023) return;
    __syncthreads();"""
    source = build().source
    text, changed = entry.subn(lambda found: found[0] + exchange, source.text)
    assert changed == 1
    source = replace(source, text=text)
    kernel = Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_90"))
    assert run_gate(EmulatorDevice(H200).load(kernel), pool.draw(kernel.source.source_hash).gate).passed
    assert "data_race" in EmulatedInspector((pool,), H200).inspect(Candidate((kernel,))).finding
    assert "data_race" in Examiner(few_setup).inspect(Candidate((kernel,))).finding


def test_a_sign_of_the_scale_that_later_pieces_of_work_ignore_is_found(few: CasePool) -> None:
    """The kernel negates Q only in the first piece of work of each CTA; a CTA's tile has more rows than most cases."""
    space, values = find_space("mma"), SETUPS[RACY.setup].values
    config = space.config({**values, "PERSISTENT": True, "WARPS_M": 4, "WARPS_N": 1, "M_ATOMS": 2})
    good = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, H200)
    first_only = "if (!Q_STAYS_SHARED && negates_queries(p) && tile_number(p, work) < gridDim.x) negate_queries(q);"
    source = mutate(good, (MutantEdit("if (!Q_STAYS_SHARED && negates_queries(p)) negate_queries(q);", first_only),))
    kernels = [Kernel(one, Compiler(default_cache_dir()).compile(one, "sm_90")) for one in (good, source)]
    right, wrong = (EmulatedInspector((few,), H200).inspect(Candidate((kernel,))) for kernel in kernels)
    assert right == Inspection()
    assert wrong.finding


def test_offsets_of_the_largest_tiles_need_more_than_32_bits_whatever_rows_are_drawn(few: CasePool) -> None:
    """Offsets within a tile of 128 rows have 64 bits; the draw has no case of more rows for the kernel."""
    space = find_space("mma")
    config = space.config({**SETUPS[RACY.setup].values, "WARPS_M": 4, "WARPS_N": 1, "M_ATOMS": 2})
    good = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, H200)
    whole = "static_cast<long long>(query(row)) * p.o_row_stride"
    parts = whole.replace("query(row)", "query(row) % Cfg::BLOCK_M")
    start = "query(row) / Cfg::BLOCK_M * Cfg::BLOCK_M * p.o_row_stride"
    source = mutate(good, (MutantEdit(whole, f"{parts} + {start}"),))
    assert max(case.inputs.problem.seq_q for case in few.draw(source.source_hash).gate) <= 128
    candidate = Candidate((Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_90")),))
    inspector = EmulatedInspector((few,), H200)
    findings = [inspector.inspect(candidate, part, 3).finding for part in range(3)]
    assert sum(map(bool, findings)) == 1, "one case shows it, which is in one of the parts"
    assert "beyond 32 bits" in max(findings)


ORDERED = (
    "const float scale = logit_scale(p);",
    """const float scale = logit_scale(p) * (1.f + 1e-4f * [] {
        static unsigned turns;
        __shared__ unsigned turn;
        if (threadIdx.x == 0) turn = atomicInc(&turns, gridDim.x * gridDim.y * gridDim.z - 1);
        __syncthreads();
        return float(turn) / (gridDim.x * gridDim.y * gridDim.z);
    }());""",
)
"""Change of the kernel by which the scale depends on how many CTAs came before; well within the gate's tolerance."""

UNORDERED_LANES = (
    "const float scale = logit_scale(p);",
    """__shared__ volatile int seen[1024];
    seen[threadIdx.x] = threadIdx.x;
    if (seen[threadIdx.x ^ 5] > 1023) return;
    const float scale = logit_scale(p);""",
)


@pytest.mark.parametrize(("change", "findings"), [(ORDERED, ("", "CTA order")), (UNORDERED_LANES, ("data_race", ""))])
def test_kernels_whose_ctas_synchronise_have_their_random_orders_in_parts_of_their_own(
    few: CasePool, change: tuple[str, str], findings: tuple[str, str]
) -> None:
    space = find_space("mma")
    config = space.config({**SETUPS[RACY.setup].values, "SPLITS": 2, "WARPS_N": 1})
    good = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, H200)
    source = mutate(good, (MutantEdit(*change),))
    candidate = Candidate((Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_90")),))
    inspector = EmulatedInspector((few,), H200)
    for part, finding in enumerate(findings):
        found = inspector.inspect(candidate, part, 2).finding
        assert bool(found) == bool(finding)
        assert finding in found


def test_an_instruction_unknown_to_the_emulator_is_no_fault_of_the_kernel(pool: CasePool) -> None:
    kernel = build()
    strange = kernel.binary.ptx.replace("bar.sync", "tcgen05.fence", 1)
    assert strange != kernel.binary.ptx
    kernel = replace(kernel, binary=replace(kernel.binary, ptx=strange))
    inspector = EmulatedInspector((pool,), H200)
    parts = [inspector.inspect(Candidate((kernel,)), part, 2) for part in range(2)]
    inspection = functools.reduce(Inspection.joined, parts)
    assert inspection.finding == ""
    (note,) = inspection.notes
    assert note.startswith("not checked on the emulator: ")


def test_the_inspector_runs_in_a_worker_process(few: CasePool) -> None:
    with WorkerPool(functools.partial(inspector_service, (few,), H200), 1, 600.0) as beside:
        good, racy = (Candidate((build(name),)) for name in ("", RACY.name))
        whole = beside.submit("inspect", good)
        parts = [beside.submit("inspect", racy, part, 3) for part in range(3)]
        assert whole.result() == Inspection()
        assert all("data_race" in part.result().finding for part in parts), "each has one of three cases"


# -- on its own device ------------------------------------------------------------------------------------------------


def test_a_finalist_whose_device_works_passes(setup: Setup) -> None:
    assert Examiner(setup).inspect(Candidate((build(),))) == Inspection()


@pytest.mark.parametrize("wrong", ["other small cases", "large cases"])
def test_a_finalist_meets_the_lengths_that_its_draw_lacked(setup: Setup, few_setup: Setup, wrong: str) -> None:
    """The device computes nothing right for lengths of the other small cases, or of the large ones, alone."""
    setup = few_setup if wrong == "large cases" else setup
    (part,) = setup.parts
    source_hash = build().source.source_hash
    draw = part.pool.draw(source_hash)
    others = part.pool.others(source_hash) if wrong == "large cases" else part.pool.large
    known = {case.inputs.problem for case in (*draw.gate, draw.recheck, *others)}

    class Picky(EmulatorDevice):
        def load(self, kernel: Kernel) -> EmulatedKernel:
            loaded = super().load(kernel)
            compute = loaded.attention

            def attention(inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
                output = compute(inputs, before)
                return output if inputs.problem in known else replace(output, o=output.o ^ np.uint16(0x8000))

            loaded.attention = attention  # type: ignore[method-assign]
            return loaded

    examiner = Examiner(setup, Picky(H200))
    assert examiner.examine(Candidate((build(),))).status is Status.OK, "the gate alone does not notice"
    assert "exceeds" in examiner.inspect(Candidate((build(),))).finding


def reads_as_dense(tensor: str, axis: str) -> Kernel:
    """The mma kernel that takes a stride of 0 for one that is not given, and computes it from sizes."""
    stride = f"p.{tensor}_{axis}_stride"
    rows, heads = ("p.seq_q", "p.heads") if tensor == "q" else ("p.seq_kv", "p.heads / p.heads_per_kv_head")
    dense = {"row": "Cfg::HEAD_DIM", "head": f"1LL * {rows} * Cfg::HEAD_DIM"}
    dense["batch"] = f"{heads} * {dense['head']}"
    used = {
        "row": f"rows.g_{tensor}, {stride}, ",
        "head": f" + {'head' if tensor == 'q' else 'kv_head'} * {stride}",
        "batch": f" + sequence * {stride}",
    }[axis]
    taken = used.replace(stride, f"({stride} != 0 ? {stride} : {dense[axis]})")
    source = mutate(build().source, (MutantEdit(used, taken),))
    return Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_90"))


@pytest.mark.parametrize(("tensor", "axis"), [("q", "batch"), ("k", "head"), ("k", "row"), ("v", "batch")])
@pytest.mark.every(3)
def test_expanded_tensors_detect_a_kernel_that_reads_them_as_dense(setup: Setup, tensor: str, axis: str) -> None:
    kernel, (part,) = reads_as_dense(tensor, axis), setup.parts
    assert Examiner(setup).examine(Candidate((kernel,))).status is Status.OK, "the gate alone does not notice"
    with closing(EmulatorDevice(H200).load(kernel)) as loaded:
        wrong = [case.name for case in part.pool.expanded if not run_gate(loaded, (case,)).passed]
    assert len(wrong) == 1
    assert f"-{tensor}-{axis}" in wrong[0]


@pytest.mark.parametrize(
    ("tensor", "axis"),
    [
        ("q", "batch"),
        *(pytest.param(*where, marks=pytest.mark.thorough) for where in (("k", "head"), ("k", "row"), ("v", "batch"))),
    ],
)
def test_a_finalist_that_reads_expanded_tensors_as_dense_is_refused(few_setup: Setup, tensor: str, axis: str) -> None:
    """The large cases come before the expanded ones, and pass."""
    finding = Examiner(few_setup).inspect(Candidate((reads_as_dense(tensor, axis),))).finding
    assert finding.startswith("expanded-")
    assert f"-{tensor}-{axis}" in finding


def test_a_finalist_that_gives_other_bits_in_a_late_call_is_refused(few_setup: Setup) -> None:
    """A GPU finds it by thousands of calls (tests/templates/test_hopper_rounds.py); here the device only says so."""
    asked: list[AttentionInputs] = []

    class Repeated(EmulatedKernel):
        def first_unequal(self, inputs: AttentionInputs, seconds: float) -> int | None:
            asked.append(inputs)
            return 41

    class Unsteady(EmulatorDevice):
        def load(self, kernel: Kernel) -> EmulatedKernel:
            loaded = super().load(kernel)
            loaded.__class__ = Repeated
            return loaded

    examiner = Examiner(few_setup, Unsteady(H200))
    assert examiner.examine(Candidate((build(),))).status is Status.OK, "the gate alone does not notice"
    assert asked == []
    assert "call 41" in examiner.inspect(Candidate((build(),))).finding
    assert asked == [few_setup.parts[0].pool.problem.inputs]


def test_a_gate_that_passes_a_no_op_is_a_defect(setup: Setup) -> None:
    """The device returns its first output for the same inputs, whatever the kernel."""
    remembered: dict[AttentionInputs, AttentionOutput] = {}

    class Stale(EmulatorDevice):
        def load(self, kernel: Kernel) -> EmulatedKernel:
            loaded = super().load(kernel)
            compute = loaded.attention

            def attention(inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
                if inputs not in remembered:
                    remembered[inputs] = compute(inputs, before)
                return remembered[inputs]

            loaded.attention = attention  # type: ignore[method-assign]
            return loaded

    examiner = Examiner(setup, Stale(H200))
    assert examiner.examine(Candidate((build(),))).status is Status.OK, "the gate alone does not notice"
    with pytest.raises(DefectError, match="parity gate"):
        examiner.inspect(Candidate((build(),)))


def test_an_extra_launch_fails_the_gate(setup: Setup) -> None:
    class Eager(EmulatorDevice):
        def load(self, kernel: Kernel) -> EmulatedKernel:
            launch = kernel.source.launch
            twice = replace(launch, then=(*launch.then, launch.launches[0]))
            return super().load(replace(kernel, source=replace(kernel.source, launch=twice)))

    examiner = Examiner(setup, Eager(H200))
    examination = examiner.examine(Candidate((build(),)))
    assert examination.status is Status.PARITY_FAILED
    assert "launch 2 of 1 calls is evo_attention" in examination.reason


def test_an_output_equal_to_sdpas_bit_for_bit_is_noted(setup: Setup) -> None:
    (part,) = setup.parts
    case = part.pool.problem
    output = EmulatorDevice(H200).load(build()).attention(case.inputs)
    rows = output.o[case.sample.batch, case.sample.head, case.sample.row]
    copied = replace(case, sdpa_fingerprint=fingerprint(rows))
    assert copied.sdpa_fingerprint != case.sdpa_fingerprint, "two ways to compute it differ in some bits"
    for known, observed in (
        (case, ()),
        (copied, ("its output on the timed inputs is SDPA's on the CPU, bit for bit",)),
    ):
        changed = replace(part, pool=replace(part.pool, problem=known))
        examination = Examiner(replace(setup, parts=(changed,))).examine(Candidate((build(),)))
        assert (examination.status, examination.notes) == (Status.OK, observed)


# -- several inspections ----------------------------------------------------------------------------------------------


def test_inspections_side_by_side_become_one() -> None:
    parts: list[Future[Inspection]] = [Future(), Future()]
    whole = joint_inspection(parts)
    parts[1].set_result(Inspection("late", ("b",)))
    assert not whole.done()
    parts[0].set_result(Inspection("", ("a",)))
    assert whole.result() == Inspection("late", ("a", "b"))
    parts = [Future(), Future()]
    whole = joint_inspection(parts)
    parts[0].set_exception(LaunchError("lost"))
    parts[1].set_result(Inspection())
    assert isinstance(whole.exception(), LaunchError)
    parts = [Future(), Future()]
    whole = joint_inspection(parts)
    parts[0].cancel()
    parts[1].set_result(Inspection())
    assert isinstance(whole.exception(), WorkerCrashError)


# -- in a search ------------------------------------------------------------------------------------------------------


def search_on(
    board: Leaderboard, space: ValidSpace, times: list[float], examiner: SyntheticExaminer, budgets: list[int]
) -> tuple[list[Config], Listener]:
    """Searches configs with these times in order; each budget is a search of its own that resumes the study."""
    configs = [space.config(index) for index in range(len(times))]
    examiner.value_of = dict(zip(configs, times, strict=True)).__getitem__
    study = board.open_study(study_key(SearchSettings(budget=1), space))
    listener = Listener()
    for budget in budgets:
        settings = SearchSettings(budget=budget)
        strategy = start_strategy(settings, space, board, study, starts=configs, log_trials=False)
        Search(settings, board, study, strategy, SyntheticCompiler(workers=1), examiner, listener).run()
    return configs, listener


@pytest.mark.parametrize("budgets", [[5], [1, 2, 3, 4, 5]], ids=["one search", "resumed each time"])
def test_champions_and_no_others_are_inspected(board: Leaderboard, space: ValidSpace, budgets: list[int]) -> None:
    examiner = SyntheticExaminer()
    configs, listener = search_on(board, space, [100.0, 99.0, 80.0, 79.0, 60.0], examiner, budgets)
    crowned = [board.get(event.row_id) for event in listener.events if isinstance(event, ChampionAccepted)]
    assert crowned[-1].evaluation.config == configs[-1]
    assert examiner.inspected == [record.evaluation.config.key for record in crowned]


def test_a_racy_kernel_is_refused_and_its_row_says_why(board: Leaderboard, space: ValidSpace, few: CasePool) -> None:
    """The second one is the fastest and its output is correct; the third one becomes champion."""
    inspector = EmulatedInspector((few,), H200)
    fastest = space.config(1)
    examiner = SyntheticExaminer(
        inspection_of=lambda config: inspector.inspect(Candidate((build(RACY.name if config == fastest else ""),)))
    )
    _, listener = search_on(board, space, [100.0, 50.0, 80.0], examiner, [1, 2, 3])
    assert [event.row_id for event in listener.events if isinstance(event, ChampionAccepted)] == [1, 3]
    (refused,) = [event for event in listener.events if isinstance(event, ChallengeRejected)]
    assert refused.row_id == 2
    assert "data_race" in refused.reason
    assert refused.duel is not None
    assert refused.duel.accepted
    assert board.get(2).evaluation.notes == (f"refused as champion: {refused.reason}",)
    assert board.get(1).evaluation.notes == board.get(3).evaluation.notes == ()
    (study,) = board.studies()
    assert [challenge.evaluation_id for challenge in board.challenges(study.scope)] == [1, 3]


def test_a_finalist_that_could_not_be_inspected_is_refused(board: Leaderboard, space: ValidSpace) -> None:
    def lost(config: Config) -> Inspection:
        raise RuntimeError("the worker died")

    _, listener = search_on(board, space, [100.0], SyntheticExaminer(inspection_of=lost), [1])
    (refused,) = [event for event in listener.events if isinstance(event, ChallengeRejected)]
    assert refused.reason.endswith("the worker died")
    (study,) = board.studies()
    assert board.champion(study.scope) is None
    assert board.evaluated(study) == 1


def test_a_gate_that_passes_a_no_op_ends_the_search(board: Leaderboard, space: ValidSpace) -> None:
    def unbelievable(config: Config) -> Inspection:
        raise DefectError("a kernel that does nothing passed the parity gate")

    with pytest.raises(DefectError, match="does nothing"):
        search_on(board, space, [100.0, 90.0], SyntheticExaminer(inspection_of=unbelievable), [2])
    (study,) = board.studies()
    assert board.champion(study.scope) is None


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_compute_sanitizer_checks_finalists_on_a_gpu() -> None:
    sanitizer = find_sanitizer()
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    examiner = Examiner(
        replace(prepare(SetupRequest(PROBLEM, DeviceSpec("cuda"), inputs_seed=7)), sanitizer=str(sanitizer))
    )
    try:
        arch = examiner.info.arch
        good, racy, stray = (Candidate((build(name, arch),)) for name in ("", RACY.name, "reads-past-the-end-of-k"))
        assert examiner.inspect(good) == examiner.sanitize(good) == Inspection()
        assert "compute-sanitizer racecheck: " in examiner.sanitize(racy).finding
        assert "compute-sanitizer memcheck: " in examiner.sanitize(stray).finding
    finally:
        examiner.close()
