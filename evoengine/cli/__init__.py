"""The command line: thin verbs, and the only place where concretes meet."""

PUBLIC_MODULES = ("app",)
"""Modules and packages that other packages import."""
