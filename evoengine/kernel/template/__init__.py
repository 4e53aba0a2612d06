"""Templates: their metadata, the prologue of a kernel, and rendering."""

PUBLIC_MODULES = ("metadata", "renderer")
"""Modules and packages that other packages import."""
