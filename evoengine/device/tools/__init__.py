"""Programs around a kernel: compute-sanitizer, Nsight Compute and the interpretation of its counters."""

PUBLIC_MODULES = ("bottleneck", "hardware_counters", "launcher", "ncu", "sanitizer")
"""Modules and packages that other packages import."""
