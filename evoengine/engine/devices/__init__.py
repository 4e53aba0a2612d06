"""Devices of a search: what this machine has, which ones an option chooses, and whether a problem fits them."""

PUBLIC_MODULES = (
    "environment",
    "gpus",
)
"""Modules and packages that other packages import."""
