"""Where kernels run: the protocols of a device, the CUDA device, worker processes, and NVIDIA's tools."""

PUBLIC_MODULES = ("architecture", "cuda", "device_selfcheck", "protocols", "tools", "workers")
"""Modules and packages that other packages import."""
