"""Search strategies: the ask-and-tell strategy, the built-in samplers, and what they share."""

PUBLIC_MODULES = ("forecast_pruning", "registry")
"""Modules and packages that other packages import."""
