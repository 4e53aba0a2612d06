"""Python API: attention on torch tensors with kernels found by searches; the public names are in ``public``."""
