"""The records that every room shares: frozen, typed, free of behaviour that needs a device."""

from evoengine.errors import Status
from evoengine.model.hardware import HardwareProfile, KernelCounters
from evoengine.model.naming import DEFAULT_PROBLEM, NAMED_PROBLEMS, parse_problem
from evoengine.model.problem import DType, Problem
from evoengine.model.problem_distance import ProblemDistance
from evoengine.model.provenance import Provenance
from evoengine.model.records import (
    Config,
    DeviceInfo,
    Duel,
    Evaluation,
    PartTime,
    Resources,
    Timing,
    Value,
    Verdict,
)
from evoengine.model.telemetry import GpuReading, Telemetry
from evoengine.model.workload import Workload, WorkloadPart

__all__ = [
    "DEFAULT_PROBLEM",
    "NAMED_PROBLEMS",
    "Config",
    "DType",
    "DeviceInfo",
    "Duel",
    "Evaluation",
    "GpuReading",
    "HardwareProfile",
    "KernelCounters",
    "PartTime",
    "Problem",
    "ProblemDistance",
    "Provenance",
    "Resources",
    "Status",
    "Telemetry",
    "Timing",
    "Value",
    "Verdict",
    "Workload",
    "WorkloadPart",
    "parse_problem",
]
