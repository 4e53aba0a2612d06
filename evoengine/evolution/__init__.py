"""Evolution of the kernels' source: patches of templates become variants, which the ordinary search tunes."""

PUBLIC_MODULES = ("credit", "llm", "loop", "run")
"""Modules and packages that other packages import."""
