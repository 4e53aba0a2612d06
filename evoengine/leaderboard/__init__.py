"""Store of all evaluations, their ranking and the champions."""

PUBLIC_MODULES = (
    "codec",
    "copying",
    "database",
    "imports",
    "lineage",
    "pareto",
    "records",
    "store",
    "transcripts",
    "variant_tree",
    "variants",
)
"""Modules and packages that other packages import."""
