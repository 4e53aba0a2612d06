"""The machine under a search: its faults, memory, files, folders of the user, temporary folders, signals, futures."""

PUBLIC_MODULES = (
    "files",
    "futures",
    "garbage_collection",
    "machine_faults",
    "main_module",
    "memory",
    "processes",
    "secrets",
    "stop_signals",
    "streams",
    "temporary",
    "user_folders",
)
"""Modules and packages that other packages import."""
