"""Python modules that belong to one kernel family, found by the family's name."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def family_module(package: str, family: str) -> ModuleType | None:
    """Imports ``<package>.<family>``.

    Packages that hold one module per family (analytic counts, mutants) use this as their registry: a family is added by
    adding a module, and families from a user's own data folder work without any.

    Args:
        package: Dotted name of a package of EvoEngine.
        family: Family name.

    Returns:
        The module, or None if the package has none of this name.
    """
    if not family.isidentifier():
        return None
    name = f"{package}.{family}"
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)
