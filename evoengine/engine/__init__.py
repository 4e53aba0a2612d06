"""Composition root: opens devices, starts services, and plans and runs a search from its options."""

PUBLIC_MODULES = (
    "checks",
    "cluster",
    "compare",
    "devices",
    "event_file",
    "families",
    "options",
    "prefetch",
    "priors",
    "progress_lines",
    "recording",
    "rows",
    "search",
    "search_plan",
    "search_process",
    "search_services",
    "session",
    "verify",
)
"""Modules and packages that other packages import."""
