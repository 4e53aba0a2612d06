"""Options of the verbs: fields, defaults, bounds and help texts, and the files that options name."""

PUBLIC_MODULES = (
    "evolution",
    "fields",
    "model",
    "problem_set",
    "search",
    "verbs",
    "workload_file",
)
"""Modules and packages that other packages import."""
