"""Warm start: the configs that a search tries first, and resuming a study from its stored evaluations."""

PUBLIC_MODULES = ("resume", "transfer", "warm_start_plan")
"""Modules and packages that other packages import."""
