"""Python files that define a model for ``tune-model``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from evoengine.errors import EvoEngineError, UsageError

BUILDER: Final = "build"
"""Name of the function of the file that returns the model and its inputs."""
_MODULE: Final = "evoengine_model_file"
"""Name of the file as a module."""


def load_model(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Executes a Python file and calls its function ``build``.

    The file is a program of the user's and runs with the user's rights; its folder is on the path meanwhile.

    Args:
        path: Python file.

    Returns:
        The model, and the inputs of one pass.

    Raises:
        UsageError: The file cannot be executed, or ``build`` does not return a model and a tuple of inputs.
    """
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{path}: no such Python file (.py): give one with a function {BUILDER}()")
    made = _built(path)
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], (tuple, list))):
        raise UsageError(f"{path}: needs a function {BUILDER}() that returns a model and a tuple of its inputs")
    return made[0], tuple(made[1])


def _built(path: Path) -> object:
    """Returns what the file's function returns."""
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(_MODULE, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_MODULE] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        build = getattr(module, BUILDER, None)
        return build() if callable(build) else None
    except EvoEngineError:
        raise
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        with suppress(ValueError):  # the file may have removed it
            sys.path.remove(folder)
