"""Where the templates that ship with EvoEngine live."""

from __future__ import annotations

from pathlib import Path

from evoengine.space.locate import data_dir


def shipped_templates() -> Path:
    """The folder with one sub-folder per family and ``partials``.

    Raises:
        UsageError: the installation lacks it.
    """
    return data_dir("templates")
