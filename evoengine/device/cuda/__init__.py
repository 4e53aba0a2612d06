"""The CUDA device: CuPy, timing by graph replay or eagerly, device buffers and their checks."""
