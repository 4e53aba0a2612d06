"""Evaluation of one candidate: the jobs of a search, the worker side that answers them, and checks of their results."""

PUBLIC_MODULES = (
    "admission",
    "build",
    "deadlines",
    "device_spec",
    "examiner",
    "inspection",
    "jobs",
    "result_validation",
    "results",
    "screening",
    "setup",
)
"""Modules and packages that other packages import."""
