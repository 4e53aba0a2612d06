"""Frozen, typed records shared by all packages: problems, configs, evaluations, timings and telemetry."""

from evoengine.errors import Status
from evoengine.model.naming import DEFAULT_PROBLEM, NAMED_PROBLEMS, parse_problem
from evoengine.model.patch import Edit, NewTunable, Patch, Region, Variant, base_family, is_variant
from evoengine.model.problem import DType, Problem
from evoengine.model.problem_distance import ProblemDistance
from evoengine.model.records import (
    ACCEPT_THRESHOLD,
    Config,
    DeviceInfo,
    Duel,
    Evaluation,
    PartTime,
    Provenance,
    Resources,
    Timing,
    Value,
    Verdict,
    executed_by_config,
)
from evoengine.model.telemetry import GpuReading, HardwareProfile, KernelCounters, Telemetry
from evoengine.model.workload import Workload, WorkloadPart

__all__ = [
    "ACCEPT_THRESHOLD",
    "DEFAULT_PROBLEM",
    "NAMED_PROBLEMS",
    "Config",
    "DType",
    "DeviceInfo",
    "Duel",
    "Edit",
    "Evaluation",
    "GpuReading",
    "HardwareProfile",
    "KernelCounters",
    "NewTunable",
    "PartTime",
    "Patch",
    "Problem",
    "ProblemDistance",
    "Provenance",
    "Region",
    "Resources",
    "Status",
    "Telemetry",
    "Timing",
    "Value",
    "Variant",
    "Verdict",
    "Workload",
    "WorkloadPart",
    "base_family",
    "executed_by_config",
    "is_variant",
    "parse_problem",
]
