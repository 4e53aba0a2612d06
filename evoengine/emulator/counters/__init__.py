"""Counters of a launch: instructions by pipe, wavefronts and bank conflicts, sectors, divergent warps."""

PUBLIC_MODULES = ("instruction_counters", "report")
"""Modules and packages that other packages import."""
