"""EvoEngine: evolutionary search for fused-attention CUDA kernels.

The public names are imported on first use, so that ``import evoengine`` stays instant. ``evoengine.search`` is both a
function and a sub-package: the package is callable, and its modules are imported as usual.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evoengine.api.public import (
        Explanation,
        ModelTime,
        ModelTuning,
        RecordedCall,
        RecordedCalls,
        TunedProblem,
        attention,
        explain,
        forget,
        record_attention,
        replace_sdpa,
        tune,
        tune_model,
    )
    from evoengine.engine.options.search import SearchOptions
    from evoengine.engine.search import search
    from evoengine.model import Problem
    from evoengine.search.settings import SearchResult

__version__ = "0.1.0"
__all__ = [
    "Explanation",
    "ModelTime",
    "ModelTuning",
    "Problem",
    "RecordedCall",
    "RecordedCalls",
    "SearchOptions",
    "SearchResult",
    "TunedProblem",
    "__version__",
    "attention",
    "explain",
    "forget",
    "record_attention",
    "replace_sdpa",
    "search",
    "tune",
    "tune_model",
]
_MODULES = {
    "Problem": "evoengine.model",
    "SearchOptions": "evoengine.engine.options.search",
    "SearchResult": "evoengine.search.settings",
}
"""Modules of the public names; the others are in ``evoengine.api.public``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'evoengine' has no attribute '{name}'")
    import importlib

    if name == "search":
        return importlib.import_module("evoengine.search")
    found = getattr(importlib.import_module(_MODULES.get(name, "evoengine.api.public")), name)
    globals()[name] = found  # the next access does not reach __getattr__
    return found


def __dir__() -> list[str]:
    """Lists the public names, also those that are not imported yet: shells complete what they find here."""
    packages = (name for name, value in globals().items() if isinstance(value, ModuleType) and value is not sys)
    return sorted({*__all__, *packages, *(name for name in globals() if name.startswith("__"))})


class _CallablePackage(ModuleType):
    """The sub-package ``evoengine.search``; a call runs :func:`evoengine.engine.search.search`."""

    @property
    def __wrapped__(self) -> Any:
        from evoengine.engine.search import search

        return search

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


class _Package(ModuleType):
    """This package. Python binds a sub-package when it imports it; ``search`` becomes callable there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "search" and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
