"""Leaderboards with synthetic rows."""

from __future__ import annotations

from pathlib import Path

from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Problem, Resources, Status, Timing, Value, Verdict

H200 = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, "13.0", "13.0.88")
L4 = DeviceInfo("emulator", "NVIDIA L4", "sm_89", True, "", "13.0.88")
MISSION = Problem(1, 8, 512, 64)
EVIL = "</script><img src=x onerror=alert(1)>"
BEST_US = 4.0


def key_of(device: DeviceInfo, problem: Problem = MISSION, seed: int = 7) -> StudyKey:
    """Returns the key of a study of two families."""
    return StudyKey(problem, "mma,wmma", device, "model-v1" if device.predicted else "graph-warm", "evolution", seed)


def evaluation(number: int, time_us: float, *, family: str = "mma", predicted: bool = False) -> Evaluation:
    """Returns a correct row; its tunables follow from its number."""
    values: dict[str, Value] = {
        "BLOCK_N": 32 << number % 3,
        "STAGES": 1 + number % 2,
        "EPILOGUE": ("direct", EVIL)[number // 3 % 2],
        "N": number,
    }
    return Evaluation(
        config=Config.of(family, values),
        status=Status.OK,
        source_hash=f"source{number}",
        code_hash=f"{family}{number}",
        template_hash="template",
        source=f"// kernel {number}\n",
        resources=Resources(64, 0, 0, 0, 4096, 128),
        verdict=Verdict(True, 1.5e-4, 9e-4, 2e-4, 7, "ragged", inputs_seed=3),
        timing=Timing(
            time_us, time_us * 0.99, time_us * 1.01, predicted, "model-v1" if predicted else "graph-warm",
            () if predicted else (time_us * 0.99, time_us, time_us * 1.01),
            None if predicted else 9.0, "" if predicted else "cudnn",
        ),
    )  # fmt: skip


def failed(number: int, status: Status, reason: str) -> Evaluation:
    """Returns a rejected row."""
    return Evaluation(config=Config.of("mma", {"N": 1000 + number}), status=status, reason=reason)


def fill(board: Leaderboard, device: DeviceInfo, *, rows: int = 24, problem: Problem = MISSION) -> Study:
    """Fills a study: correct rows of two families down to ``BEST_US``, two champions, a lost duel, and rejections."""
    study = board.open_study(key_of(device, problem))
    ids = []
    for number in range(rows):
        time_us = BEST_US + 0.5 * (rows - 1 - number)
        family = "wmma" if number % 4 == 3 else "mma"
        ids.append(board.record(study, evaluation(number, time_us, family=family, predicted=device.predicted), number))
    for number, registers in enumerate((300, 310, 299)):
        reason = f"needs {registers} registers per thread, the device has 255"
        board.record(study, failed(number, Status.RESOURCE_LIMIT, reason))
    board.record(study, failed(9, Status.PARITY_FAILED, EVIL))
    board.record_challenge(study.scope, ids[0], None, None)
    lost = Duel((9.0,) * 3, (9.0,) * 3, 0.0, -0.01, 0.03, False)
    won = Duel((4.0, 4.1), (8.0, 8.2), 0.5, 0.48, 0.03, True)
    board.record_challenge(study.scope, ids[1], ids[0], lost)
    board.record_challenge(study.scope, ids[-1], ids[0], won)
    return study


def open_board(folder: Path, name: str = "leaderboard.db") -> Leaderboard:
    """Opens a leaderboard in a folder."""
    return Leaderboard(f"sqlite:///{folder / name}")
