"""Checked execution of kernels on the emulator: calls and their repetitions, time limits, source lines of faults."""

PUBLIC_MODULES = ("limits",)
"""Modules and packages that other packages import."""
