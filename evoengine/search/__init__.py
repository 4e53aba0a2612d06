"""The search: forecasts, strategies, the evaluation of a candidate, the champion rule, and the loop that joins them."""

PUBLIC_MODULES = (
    "candidate",
    "champion",
    "event_log",
    "events",
    "forecast",
    "landscape_facts",
    "loop",
    "measurement_stats",
    "prediction_check",
    "replay",
    "selftest",
    "settings",
    "strategies",
    "trial_log",
    "warmstart",
)
"""Modules and packages that other packages import."""
