"""Cost model: predicts device time without a GPU, from emulated counters or from the config alone."""

PUBLIC_MODULES = (
    "device",
    "emulation",
    "forecast",
    "forecast_error",
    "hotspots",
    "latency",
    "representative",
)
"""Modules and packages that other packages import."""
