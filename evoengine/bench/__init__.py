"""Timing: baseline, samples, racing, duels, energy, and the comparison with peers."""

PUBLIC_MODULES = (
    "acceptance",
    "baseline",
    "benchmark",
    "compare_job",
    "compare_result",
    "compare_run",
    "gpu_monitor",
    "peer_registry",
    "racing",
    "roofline_floor",
    "sampling",
    "timer",
)
"""Modules and packages that other packages import."""
