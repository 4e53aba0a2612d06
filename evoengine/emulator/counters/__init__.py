"""Counters of a launch: wavefronts and bank conflicts, sectors, divergent warps, and the launch report."""

PUBLIC_MODULES = ("instruction_counters", "report")
"""Modules and packages that other packages import."""
