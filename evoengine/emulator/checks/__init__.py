"""Faults that a launch can end in, and the detection of data races in shared memory."""

PUBLIC_MODULES = ("faults",)
"""Modules and packages that other packages import."""
