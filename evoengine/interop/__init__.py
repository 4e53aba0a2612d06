"""Exchange with other programs: results, rows and problems as files in their formats."""

PUBLIC_MODULES = ("foreign_files", "kernel_tuner", "rbk", "result_files", "rows", "t4")
"""Modules and packages that other packages import."""
