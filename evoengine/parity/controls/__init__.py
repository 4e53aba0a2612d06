"""Controls that detect a gate that checks the wrong output: no-op kernels and launch counts."""

PUBLIC_MODULES = ("launch_count", "noop_control")
"""Modules and packages that other packages import."""
