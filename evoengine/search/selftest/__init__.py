"""The self-test: the parity gate on wrong kernels and control kernels, and the champion rule on equal kernels."""

PUBLIC_MODULES = ("null_control", "score", "selftest")
"""Modules and packages that other packages import."""
