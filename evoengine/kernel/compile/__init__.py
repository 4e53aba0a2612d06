"""Compiling: NVRTC, the compile cache, identity of machine code, and source lines of instructions."""
