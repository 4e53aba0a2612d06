"""EvoEngine: evolutionary search for fused-attention CUDA kernels.

``evoengine.attention``, ``explain``, ``tune``, ``forget`` and ``Explanation`` come from :mod:`evoengine.api.public` on
first use; until then ``import evoengine`` imports nothing and stays instant. Each room is imported by name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evoengine.api.public import Explanation, attention, explain, forget, tune

__version__ = "0.1.0"
__all__ = ["Explanation", "__version__", "attention", "explain", "forget", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'evoengine' has no attribute '{name}'")
    import importlib

    found = getattr(importlib.import_module("evoengine.api.public"), name)
    globals()[name] = found  # the next look does not come here
    return found
