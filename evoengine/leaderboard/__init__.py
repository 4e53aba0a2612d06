"""Store of all evaluations, their ranking and the champions."""

PUBLIC_MODULES = (
    "codec",
    "connection",
    "copying",
    "imports",
    "lineage",
    "pareto",
    "records",
    "server_url",
    "store",
    "transcripts",
    "variant_tree",
    "variants",
)
"""Modules and packages that other packages import."""
