"""Sets of configs as multi-valued decision diagrams: construction, counting, sampling and nearest configs."""

PUBLIC_MODULES: tuple[str, ...] = ()
"""Modules and packages that other packages import."""
