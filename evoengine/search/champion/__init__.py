"""The champion rule: duels, overdue challenges, the sanitizer check of the leader, and the energy of the elites."""

PUBLIC_MODULES = ("energy", "overdue", "refusal")
"""Modules and packages that other packages import."""
