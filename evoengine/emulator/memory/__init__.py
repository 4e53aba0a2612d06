"""Global memory, tensor maps and the parameter block of a launch; words and addresses of all memories."""

PUBLIC_MODULES = ("far_memory", "global_memory", "tensor_map", "uniform_memory")
"""Modules and packages that other packages import."""
