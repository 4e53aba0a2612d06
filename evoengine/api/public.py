"""The names that ``evoengine`` hands on: ``attention``, ``explain``, ``tune``, ``forget`` and ``Explanation``."""

from evoengine.api.explanation import Explanation
from evoengine.api.serving import attention, explain, forget
from evoengine.api.tuning import tune

__all__ = ["Explanation", "attention", "explain", "forget", "tune"]
