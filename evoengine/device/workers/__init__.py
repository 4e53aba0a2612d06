"""Worker processes: a fork server, slots that replace crashed workers, and the checked format of their answers."""

PUBLIC_MODULES = ("gpu_binding", "pool", "sidecar_process", "single_worker", "worker_main", "worker_slot")
"""Modules and packages that other packages import."""
