"""Python API: attention on torch tensors with kernels found by searches; the public names are in ``public``."""

PUBLIC_MODULES = ("lockfile", "rows")
"""Modules and packages that other packages import."""
