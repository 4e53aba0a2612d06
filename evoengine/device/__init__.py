"""Where kernels run: the protocols of a device, the CUDA device, worker processes, and NVIDIA's tools."""
