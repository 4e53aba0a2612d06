"""Rows of a leaderboard as users name them: their selection, their spaces and their kernels."""

PUBLIC_MODULES = (
    "kernels",
    "queries",
    "reference",
    "shortlist",
    "space",
)
"""Modules and packages that other packages import."""
