"""The records that every room shares: frozen, typed, free of behaviour that needs a device."""

from evoengine.model.naming import NAMED_PROBLEMS, parse_problem
from evoengine.model.problem import DType, Problem
from evoengine.model.records import (
    Config,
    DeviceInfo,
    Duel,
    Evaluation,
    Resources,
    Status,
    Timing,
    Value,
    Verdict,
)

__all__ = [
    "NAMED_PROBLEMS",
    "Config",
    "DType",
    "DeviceInfo",
    "Duel",
    "Evaluation",
    "Problem",
    "Resources",
    "Status",
    "Timing",
    "Value",
    "Verdict",
    "parse_problem",
]
