"""Python API: attention on torch tensors with kernels found by searches; the public names are in ``public``."""

PUBLIC_MODULES = ("call_recording", "lockfile", "model_file", "model_timing", "model_tuning", "rows")
"""Modules and packages that other packages import."""
