"""Public names, re-exported by ``evoengine``: calls of attention, and searches for them."""

from evoengine.api.call_recording import RecordedCall, RecordedCalls, record_attention
from evoengine.api.explanation import Explanation
from evoengine.api.model_timing import ModelTime
from evoengine.api.model_tuning import ModelTuning, TunedProblem, tune_model
from evoengine.api.sdpa_replacement import replace_sdpa
from evoengine.api.serving import attention, explain, forget
from evoengine.api.tuning import tune

__all__ = [
    "Explanation",
    "ModelTime",
    "ModelTuning",
    "RecordedCall",
    "RecordedCalls",
    "TunedProblem",
    "attention",
    "explain",
    "forget",
    "record_attention",
    "replace_sdpa",
    "tune",
    "tune_model",
]
