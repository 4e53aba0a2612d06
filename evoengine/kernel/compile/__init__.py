"""Compiling: NVRTC, the compile cache, identity of machine code, and source lines of instructions."""

PUBLIC_MODULES = ("cache", "compiler", "disassembly", "malloc_tuning", "nvrtc", "toolchain_check")
"""Modules and packages that other packages import."""
