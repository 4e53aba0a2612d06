"""Export of evaluated kernels as files that work without EvoEngine."""

from evoengine.export.cu import export_cu, nvcc_target
from evoengine.export.record import ExportRecord

__all__ = ["ExportRecord", "export_cu", "nvcc_target"]

PUBLIC_MODULES = ("files", "robust_kbench")
"""Modules and packages that other packages import."""
