"""Global memory, shared memory, asynchronous copies and the parameter block of a launch."""

PUBLIC_MODULES = ("far_memory", "global_memory", "tensor_map", "uniform_memory")
"""Modules and packages that other packages import."""
