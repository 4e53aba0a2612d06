"""Config to source, source to binary: templates, NVRTC, the compile cache, and what a binary needs of an SM."""
