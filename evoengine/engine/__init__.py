"""Composition root: opens devices, starts services, and plans and runs a search from its options."""

PUBLIC_MODULES = (
    "cluster_process",
    "compare",
    "environment_check",
    "event_file",
    "families",
    "gpus",
    "null_control",
    "options",
    "prefetch",
    "priors",
    "progress_lines",
    "recording",
    "row_queries",
    "row_reference",
    "search",
    "search_process",
    "selftest",
    "session",
    "stored_kernels",
    "tunable_check",
    "tunable_effects",
    "verb_options",
    "verify",
    "workload_file",
)
"""Modules and packages that other packages import."""
