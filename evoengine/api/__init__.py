"""The Python API: attention on torch tensors with the kernels that searches found. Its names are in ``public``."""
