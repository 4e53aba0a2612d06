"""EvoEngine: evolutionary search for fused-attention CUDA kernels.

The package root imports nothing, so that ``import evoengine`` stays instant; each room is imported by name.
"""

__version__ = "0.1.0"
