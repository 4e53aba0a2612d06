"""The CUDA device: CuPy, timing by graph replay or eagerly, device buffers and their checks."""

PUBLIC_MODULES = ("deadline", "device", "driver")
"""Modules and packages that other packages import."""
