"""Sets of configs as multi-valued decision diagrams: construction, counting, sampling and nearest configs."""

PUBLIC_MODULES = ("decision_diagram", "row_set")
"""Modules and packages that other packages import."""
