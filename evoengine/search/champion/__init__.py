"""The champion rule: duels, the sanitizer check of the leader, and the energy of the elites."""

PUBLIC_MODULES = ("energy",)
"""Modules and packages that other packages import."""
