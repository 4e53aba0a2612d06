"""Public names, re-exported by ``evoengine``: ``attention``, ``explain``, ``tune``, ``forget``, ``Explanation``."""

from evoengine.api.explanation import Explanation
from evoengine.api.serving import attention, explain, forget
from evoengine.api.tuning import tune

__all__ = ["Explanation", "attention", "explain", "forget", "tune"]
