"""Peers against fp64, the ways in which a peer can be missing, and the arithmetic and the page of a comparison."""

from __future__ import annotations

import json
import re
import sys
import weakref
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from evoengine.bench.baseline import open_baseline
from evoengine.bench.compare_job import CompareJob, OutputCheck, OwnKernel
from evoengine.bench.compare_result import (
    HEADINGS,
    Comparison,
    Finding,
    PeerStatus,
    cells,
    document,
    make_rows,
    markdown,
    roofline_us,
)
from evoengine.bench.compare_run import CompareProgress, measure
from evoengine.bench.peer_protocol import (
    Peer,
    PeerCall,
    PeerInputs,
    PeerOutput,
    PeerUnavailableError,
    first_line,
    host_output,
    load,
    upload,
)
from evoengine.bench.peer_registry import all_peers, select_peers
from evoengine.bench.peer_stopwatch import TorchStopwatch
from evoengine.bench.peers.triton_fa2 import configs_for, launcher
from evoengine.bench.timer import plan_for
from evoengine.errors import UsageError
from evoengine.model import DType, Problem, parse_problem
from evoengine.parity.compare import judge
from evoengine.parity.inputs.cases import problem_case
from evoengine.target import get_target
from tests.bench.hostile_peers import Check

if TYPE_CHECKING:
    import torch

pytest.importorskip("torch")

PROBLEMS = (
    Problem(1, 2, 40, 32),
    Problem(2, 2, 64, 32, causal=True),
    Problem(1, 4, 24, 32, kv_heads=2, seq_kv=56, causal=True, dtype=DType.BF16),
    Problem(1, 4, 37, 64, kv_heads=1, seq_kv=83),
    Problem(1, 2, 48, 16, seq_kv=33, causal=True),  # the first rows see no key
    Problem(1, 2, 1, 64, seq_kv=100, causal=True),
)
WINDOWS = (
    Problem(1, 2, 40, 32, window_left=7, window_right=3),
    Problem(2, 2, 30, 32, seq_kv=50, window_left=9, causal=True, dtype=DType.BF16),
    Problem(1, 4, 20, 16, kv_heads=2, window_right=4),
)
FEATURES = (
    Problem(1, 2, 40, 32, softcap=3.0),
    Problem(1, 2, 40, 32, lse=True),
    Problem(1, 2, 33, 16, window_left=9, causal=True, softcap=5.0, lse=True, dtype=DType.BF16),
    Problem(3, 2, 40, 16, seq_kv=50, lengths_q=(40, 3, 12), lengths_kv=(50, 9, 12), causal=True, lse=True),
    Problem(2, 4, 40, 16, kv_heads=2, lengths_q=(40, 17), lengths_kv=(31, 40), window_left=8, window_right=2),
    Problem(2, 2, 40, 16, lengths_q=(17, 40), lengths_kv=(31, 40), softcap=4.0),
)
ON_GPU = (
    Problem(1, 2, 128, 64),
    Problem(2, 4, 128, 64, causal=True, dtype=DType.BF16),
    Problem(2, 4, 37, 128, kv_heads=2, seq_kv=83, causal=True),
)
"""Shapes that most libraries support."""
FEATURES_ON_GPU = (
    Problem(1, 4, 200, 64, window_left=50, causal=True),
    Problem(1, 4, 200, 128, kv_heads=2, softcap=15.0, causal=True),
    Problem(2, 4, 200, 64, lse=True),
    Problem(3, 4, 90, 64, seq_kv=120, kv_heads=2, lengths_q=(90, 1, 40), lengths_kv=(120, 64, 40), causal=True),
    Problem(8, 32, 1, 128, kv_heads=8, seq_kv=500),
)
LIBRARIES = ("triton-fa2", "flash-attn-2", "flash-attn-3", "flash-attn-4", "xformers", "flashinfer")
MISSION = parse_problem("mission")
H200 = get_target("h200")


def peer_named(name: str) -> Peer:
    (peer,) = select_peers(name)
    return peer


@dataclass(frozen=True)
class FakePeer:
    """A peer that computes SDPA and then spoils it."""

    spoil: str = ""
    name: str = "fake"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        if self.spoil == "prepare":
            raise KeyError("a wheel\ncame off")
        call = peer_named("sdpa").prepare(inputs)

        def run() -> PeerOutput:
            output = call()
            if self.spoil == "scale":
                return PeerOutput(output.o * 1.01)
            if self.spoil == "shape":
                return PeerOutput(output.o[:, :, :-1])
            return output

        frozen = call()
        return PeerCall((lambda: frozen) if self.spoil == "frozen" else run)


def check_peer(peer: Peer, tensors: PeerInputs, check: OutputCheck) -> Finding:
    """Runs a peer once in this process, eagerly, and checks its output; works on any torch device."""
    import torch

    try:
        call = peer.prepare(tensors)
        with torch.no_grad(), call.scope():
            checked = check(host_output(call(), tensors.problem))
    except PeerUnavailableError as error:
        return Finding(peer.name, PeerStatus.UNAVAILABLE, str(error))
    except Exception as error:  # noqa: BLE001 - any failure of a foreign library is a finding
        return Finding(peer.name, PeerStatus.FAILED, f"{type(error).__name__}: {first_line(error)}")
    outcome = PeerStatus.WRONG if checked.reason else PeerStatus.OK
    return Finding(peer.name, outcome, checked.reason or call.note, max_error=checked.max_error)


# -- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
@pytest.mark.parametrize("name", ["sdpa", "sdpa-flash", "sdpa-math", "flex"])
@pytest.mark.every(3)
def test_peers_that_run_on_a_cpu_compute_attention(name: str, problem: Problem) -> None:
    case = problem_case(problem, 3)
    finding = check_peer(peer_named(name), upload(case.inputs, "cpu"), Check(case))
    assert finding.outcome is PeerStatus.OK, finding
    assert finding.max_error is not None
    assert 0 < finding.max_error <= case.max_error


@pytest.mark.parametrize("problem", WINDOWS, ids=lambda problem: problem.key)
@pytest.mark.parametrize("name", ["sdpa", "sdpa-math", "flex"])
@pytest.mark.every(2)
def test_peers_that_do_windows_compute_them(name: str, problem: Problem) -> None:
    case = problem_case(problem, 3)
    finding = check_peer(peer_named(name), upload(case.inputs, "cpu"), Check(case))
    assert finding.outcome is PeerStatus.OK, finding


@pytest.mark.parametrize("problem", FEATURES, ids=lambda problem: problem.key)
@pytest.mark.every(3)
def test_flex_supports_softcap_log_sum_exp_and_packed_sequences(problem: Problem) -> None:
    case = problem_case(problem, 3)
    finding = check_peer(peer_named("flex"), upload(case.inputs, "cpu"), Check(case))
    assert finding.outcome is PeerStatus.OK, finding


@pytest.mark.parametrize(
    ("problem", "able", "words"),
    [
        (Problem(1, 2, 8, 16, window_left=3), {"flex", "torch-varlen", "xformers", "flashinfer"}, "windows"),
        (Problem(1, 2, 8, 16, softcap=3.0), {"flex", "flashinfer"}, "softcap"),
        (Problem(1, 2, 8, 16, sink=True), set(), "sinks"),
        (Problem(1, 2, 8, 16, lse=True), {"flex", "torch-varlen"}, "the log-sum-exp"),
        (Problem(1, 2, 8, 16, lengths_q=(8,), lengths_kv=(8,)), {"flex", "torch-varlen", "xformers"}, "packed"),
    ],
    ids=["window", "softcap", "sink", "lse", "packed"],
)
def test_a_peer_names_the_unsupported_features(problem: Problem, able: set[str], words: str) -> None:
    inputs = upload(problem_case(problem, 3).inputs, "cpu")
    for peer in all_peers():
        if peer.name.startswith("sdpa") and problem.window_left is not None:
            continue
        try:
            peer.prepare(inputs)
        except PeerUnavailableError as error:
            told = str(error)
        else:
            assert peer.name in able, f"{peer.name} must refuse"
            continue
        absent = ("not installed", "needs ", "cannot be imported")
        assert peer.name in able or told.startswith(absent) or (told.startswith("does not do") and words in told), told


@dataclass(frozen=True)
class FakeLse:
    """FlexAttention with a wrong log-sum-exp."""

    factor: float | None
    name: str = "fake"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        call = peer_named("flex").prepare(inputs)
        with call.scope():  # torch warns about arguments that it renamed
            output = call()
        assert output.lse is not None
        lse = None if self.factor is None else output.lse * self.factor
        return PeerCall(lambda: PeerOutput(output.o, lse))


def test_the_log_sum_exp_of_a_peer_is_checked() -> None:
    case = problem_case(Problem(1, 2, 40, 32, lse=True), 3)
    tensors = upload(case.inputs, "cpu")
    assert check_peer(FakeLse(1.0), tensors, Check(case)).outcome is PeerStatus.OK
    for factor, says in ((1.5, "log-sum-exp off"), (None, "missing")):
        finding = check_peer(FakeLse(factor), tensors, Check(case))
        assert finding.outcome is PeerStatus.WRONG
        assert says in finding.note


def test_there_is_no_baseline_when_no_backend_supports_the_problem() -> None:
    inputs = problem_case(Problem(1, 2, 8, 16, sink=True), 3).inputs
    assert open_baseline(inputs, plan_for(inputs.problem).stopwatch) is None


def test_a_backend_that_does_not_fit_is_unavailable() -> None:
    case = problem_case(PROBLEMS[0], 3)
    finding = check_peer(peer_named("sdpa-cudnn"), upload(case.inputs, "cpu"), Check(case))
    assert finding.outcome is PeerStatus.UNAVAILABLE
    assert finding.note.startswith(("not supported: ", "does not take"))


@pytest.mark.parametrize("peer", all_peers(), ids=lambda peer: peer.name)
def test_a_peer_without_its_gpu_or_library_is_a_row_with_a_short_reason(peer: Peer) -> None:
    case = problem_case(PROBLEMS[0], 3)
    finding = check_peer(peer, upload(case.inputs, "cpu"), Check(case))
    assert finding.name == peer.name
    if finding.outcome is not PeerStatus.OK:
        assert finding.note
        assert "\n" not in finding.note


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_not_there_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"triton", "flash_attn", "flash_attn_interface", "flash_attn_3", "xformers", "flashinfer"}
    monkeypatch.setattr(sys, "meta_path", [Hide(absent), *sys.meta_path])
    for module in [module for module in sys.modules if module.partition(".")[0] in absent]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(PeerUnavailableError, match=r"^not installed$"):  # before anything is copied to a GPU
        peer_named(name).prepare(upload(problem_case(PROBLEMS[0], 3).inputs, "cuda:99"))


class Hide:
    """An import hook that makes packages absent."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_failed_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "peer_that_needs_more.py").write_text("import something_not_there\n")
    (tmp_path / "peer_of_another_torch.py").write_text("raise ImportError('undefined symbol: x\\nand more')\n")
    for module, reason in (
        ("peer_not_there", "not installed"),
        ("peer_not_there.inner", "not installed"),
        ("peer_that_needs_more", "needs something_not_there, which is not installed"),
        ("peer_of_another_torch", "cannot be imported: undefined symbol: x"),
    ):
        with pytest.raises(PeerUnavailableError) as caught:
            load(module)
        assert str(caught.value) == reason


def test_flash_attn_4_alone_does_not_count_as_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").write_text("def flash_attn_func(q, k, v, causal): ...\n")
    (tmp_path / "flash_attn" / "__init__.py").write_text("")
    inputs = upload(problem_case(PROBLEMS[0], 3).inputs, "cpu")
    with pytest.raises(PeerUnavailableError, match="not installed"):
        peer_named("flash-attn-2").prepare(inputs)
    with pytest.raises(PeerUnavailableError, match="GPU"):
        peer_named("flash-attn-4").prepare(inputs)
    for module in [module for module in sys.modules if module.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize(
    ("spoil", "outcome", "says"),
    [
        ("", PeerStatus.OK, ""),
        ("scale", PeerStatus.WRONG, "exceeds"),
        ("shape", PeerStatus.FAILED, "(1, 2, 39, 32)"),
        ("prepare", PeerStatus.FAILED, "KeyError"),
    ],
)
def test_a_wrong_or_broken_peer_is_reported(spoil: str, outcome: PeerStatus, says: str) -> None:
    case = problem_case(PROBLEMS[0], 3)
    finding = check_peer(FakePeer(spoil), upload(case.inputs, "cpu"), Check(case))
    assert finding.outcome is outcome
    assert says in finding.note
    assert "\n" not in finding.note


def test_an_upload_keeps_every_bit() -> None:
    for dtype in DType:
        case = problem_case(replace(PROBLEMS[0], dtype=dtype), 5)
        tensors = upload(case.inputs, "cpu")
        assert (host_output(PeerOutput(tensors.q), case.inputs.problem).o == case.inputs.q).all()


def test_peers_are_chosen_by_name() -> None:
    assert len({peer.name for peer in all_peers()}) == len(all_peers()) >= 12
    assert select_peers(None) == all_peers()
    assert [peer.name for peer in select_peers("flex, sdpa,flex")] == ["flex", "sdpa"]
    for names, says in (("sdpa,voodoo", "unknown peer 'voodoo'"), (" , ", "no peer is named")):
        with pytest.raises(UsageError, match=says) as caught:
            select_peers(names)
        assert "triton-fa2" in str(caught.value)


def test_the_triton_tuner_tries_a_few_dozen_configurations_that_fit() -> None:
    assert 24 <= len(configs_for(MISSION)) <= 60
    decode = configs_for(Problem(1, 8, 1, 128, seq_kv=4096))
    assert decode
    assert {config.block_m for config in decode} == {16}
    assert len(set(configs_for(MISSION))) == len(configs_for(MISSION))


def test_first_lines_are_short() -> None:
    assert first_line(RuntimeError("\n\n  too   bad \n more")) == "too bad"
    assert first_line(RuntimeError()) == "RuntimeError"
    assert len(first_line(RuntimeError("x" * 1000))) == 160


# -- the table --------------------------------------------------------------------------------------------------------


def findings() -> tuple[Finding, ...]:
    return (
        Finding("slow", PeerStatus.OK, "2.8", (8.0,) * 9, 2e-4, 40.0),
        Finding("ours", PeerStatus.OK, "row 7", (4.0, 4.1, 3.9, 4.0, 4.0, 4.2, 4.0), 1e-4, 9.0, ours=True),
        Finding("gone", PeerStatus.UNAVAILABLE, "not installed"),
        Finding("wrong", PeerStatus.WRONG, "error 0.3 | exceeds 0.001", (2.0,) * 9, 0.3, 30.0),
        Finding("fast", PeerStatus.OK, "", (5.0,) * 9, 2e-4, 30.0),
        Finding("broken", PeerStatus.FAILED, "KeyError: 'x'"),
    )


def comparison(found: tuple[Finding, ...]) -> Comparison:
    return Comparison(
        problem=MISSION.key,
        device="NVIDIA H200",
        versions=(("driver", "13.0"), ("torch", "2.11")),
        method="graph-cold",
        calls=20,
        samples=9,
        tolerance=1e-3,
        roofline_us=roofline_us(MISSION, H200),
        rows=make_rows(found, MISSION, H200),
        config="mma: BLOCK_N=64 WARPS_M=2",
    )


def test_the_roofline_is_the_larger_of_arithmetic_and_traffic() -> None:
    # Mission: 4*8*512*512*64 FLOP at 989.4 TFLOP/s is 0.543 us; 4 tensors of 512 KiB at 4800 GB/s are 0.437 us.
    assert roofline_us(MISSION, H200) == pytest.approx(0.54263, rel=1e-4)
    # Decode: 2*4096*8 key heads*128 elements of 2 bytes, twice, dwarf the FLOP.
    decode = Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096)
    bytes_moved = 2 * (2 * 8 * 32 * 128 + 2 * 8 * 8 * 4096 * 128)
    assert roofline_us(decode, H200) == pytest.approx(bytes_moved / 4.8e6)
    # Causal with 8 times as many queries as keys: only the last 1,024 queries see keys, the n-th of them n keys.
    causal = Problem(4, 16, 8192, 128, seq_kv=1024, causal=True)
    bytes_moved = 2 * 2 * 4 * 16 * (8192 + 1024) * 128
    assert roofline_us(causal, H200) == pytest.approx(bytes_moved / 4.8e6)
    # Causal and square: half of the pairs, and half of the diagonal.
    square = Problem(4, 16, 2048, 128, causal=True)
    assert roofline_us(square, H200) == pytest.approx(4 * 4 * 16 * 128 * (2048 * 2049 // 2) / 989.4e6, rel=1e-6)


def test_rates_ratios_and_order() -> None:
    rows = make_rows(findings(), MISSION, H200)
    assert [row.name for row in rows] == ["ours", "wrong", "fast", "slow", "gone", "broken"]
    by_name = {row.name: row for row in rows}
    ours, slow = by_name["ours"], by_name["slow"]
    assert ours.median_us == 4.0
    assert (ours.low_us, ours.high_us) == (3.9, 4.2)
    assert ours.ratio_to_ours == 1
    assert slow.ratio_to_ours == 2
    assert slow.tflops == pytest.approx(536_870_912 / 8e6)
    assert slow.roofline_share == pytest.approx(0.54263 / 8, rel=1e-4)
    assert by_name["gone"].median_us is None
    assert by_name["gone"].ratio_to_ours is None


def test_the_best_peer_is_correct_and_not_ours() -> None:
    found = comparison(findings())
    assert found.best_peer is not None
    assert found.best_peer.name == "fast"
    assert found.ours_over_best_peer == pytest.approx(0.8)
    assert "0.800" in found.verdict


def test_without_ours_nothing_is_compared_with_it() -> None:
    found = comparison(tuple(finding for finding in findings() if not finding.ours))
    assert found.ours_over_best_peer is None
    assert all(row.ratio_to_ours is None for row in found.rows)
    assert "fast with 5.00 µs" in found.verdict
    assert comparison(()).verdict == "no peer was timed"


def test_a_wrong_kernel_of_ours_is_not_compared_with() -> None:
    spoilt = tuple(replace(f, outcome=PeerStatus.WRONG) if f.ours else f for f in findings())
    assert comparison(spoilt).ours is None
    assert all(row.ratio_to_ours is None for row in comparison(spoilt).rows)


def test_the_page_has_every_row_in_full() -> None:
    text = markdown(comparison(findings()))
    assert "\n- ours: mma: BLOCK_N=64 WARPS_M=2\n" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6
    for line in table:
        assert line.replace("\\|", "").count("|") == len(HEADINGS) + 1
    assert "| **ours** | 4.00 | 3.90-4.20 | 134.2 | 13.6% | 1.0e-04 | 9.0 | 1.00x | row 7 |" in table
    assert "| gone | - | - | - | - | - | - | - | not installed |" in table
    assert any("WRONG: error 0.3 \\| exceeds" in line for line in table)
    assert any("failed: KeyError" in line for line in table)
    assert "cold L2" in text
    assert re.search(r"\bours .*0\.800", text)


def test_the_document_is_json_with_a_key_per_column() -> None:
    told = json.loads(json.dumps(document(comparison(findings()))))
    assert told["best_peer"] == "fast"
    assert told["ours_over_best_peer"] == pytest.approx(0.8)
    assert told["versions"] == {"driver": "13.0", "torch": "2.11"}
    assert len(told["rows"]) == 6
    keys = {"name", "outcome", "median_us", "low_us", "high_us", "tflops", "roofline_share", "max_error", "host_us"}
    assert all(keys | {"ratio_to_ours", "note", "ours", "prepare_s"} == row.keys() for row in told["rows"])
    assert len(cells(comparison(findings()).rows[0])) == len(HEADINGS)


@dataclass(frozen=True)
class CopyPeer:
    """A peer whose captured calls read a tensor that nothing else refers to."""

    name: str = "copy"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        attention = peer_named("sdpa-math").prepare(replace(inputs))  # with copies of its own
        large = torch_zeros(2**25, inputs)

        def run() -> PeerOutput:
            output = attention()
            return PeerOutput(output.o + large[: output.o.numel()].view(output.o.shape))

        return PeerCall(run)


def torch_zeros(elements: int, like: PeerInputs) -> torch.Tensor:
    import torch

    return torch.zeros(elements, dtype=like.q.dtype, device=like.q.device)


def test_a_stopwatch_keeps_the_tensors_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = upload(problem_case(PROBLEMS[0], 3).inputs, "cpu")
    tensor = torch_zeros(8, inputs)
    monkeypatch.setattr("torch.cuda", MagicMock())  # a graph can be captured on a GPU only
    alive = weakref.ref(tensor)
    watch = TorchStopwatch(PeerCall(partial(PeerOutput, tensor)), plan_for(PROBLEMS[0]).stopwatch)
    del tensor
    assert alive() is not None
    watch.close()
    assert alive() is None


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of libraries, and of the empty graph that one test makes on purpose
@pytest.mark.parametrize("problem", [*ON_GPU, *FEATURES_ON_GPU], ids=lambda problem: problem.key)
@pytest.mark.parametrize("peer", all_peers(), ids=lambda peer: peer.name)
def test_every_peer_that_is_installed_computes_attention(peer: Peer, problem: Problem) -> None:
    if peer.name in {"triton-fa2", "flex"}:
        pytest.skip("tuned for a minute: the kernel is tested apart, and flex on the CPU")
    case = problem_case(problem, 3)
    finding = check_peer(peer, upload(case.inputs), Check(case))
    assert finding.outcome in {PeerStatus.OK, PeerStatus.UNAVAILABLE}, finding


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of libraries, and of the empty graph that one test makes on purpose
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_the_triton_kernel_computes_attention(problem: Problem) -> None:
    pytest.importorskip("triton")
    case = problem_case(problem, 3)
    tensors = upload(case.inputs)
    for config in configs_for(problem)[::5]:
        output = host_output(launcher(tensors, config)(), problem)
        assert judge(case, output).reason == "", config


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of libraries
def test_a_replay_after_other_captures_reads_no_freed_memory() -> None:
    problem = PROBLEMS[0]
    case = problem_case(problem, 3)
    options = plan_for(problem).stopwatch
    first = TorchStopwatch(CopyPeer().prepare(upload(case.inputs)), options)
    second = TorchStopwatch(peer_named("sdpa-math").prepare(upload(case.inputs)), options)  # empties torch's cache
    for watch in (first, second):
        assert judge(case, host_output(watch.output(), problem)).reason == ""
        watch.close()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of libraries, and of the empty graph that one test makes on purpose
def test_all_kernels_are_timed_on_graphs_that_do_the_work() -> None:
    problem = Problem(1, 2, 128, 64)
    case = problem_case(problem, 3)
    peers = (*select_peers("sdpa,sdpa-math"), FakePeer("frozen", "frozen"), FakePeer("prepare", "broken"))
    announced: list[str] = []
    plan = replace(plan_for(problem), samples=6)
    job = CompareJob(case.inputs, OwnKernel(None, "no kernel"), peers, Check(case), plan)
    found = measure(job, CompareProgress(announced.append))
    by_name = {finding.name: finding for finding in found}
    for name in ("sdpa", "sdpa-math"):
        assert by_name[name].outcome is PeerStatus.OK, by_name[name]
        assert len(by_name[name].samples_us) == 6
        assert min(by_name[name].samples_us) > 0
        assert (by_name[name].host_us or 0) > 0
    assert by_name["frozen"].outcome is PeerStatus.WRONG, "a graph without work must show"
    assert by_name["broken"].outcome is PeerStatus.FAILED
    assert found[0].note == "no kernel"
    assert announced[1:5] == ["sdpa", "sdpa-math", "frozen", "broken"]
