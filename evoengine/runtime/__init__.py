"""Runtime: runs finished kernels inside a user's process, from torch tensors to the CUDA driver.

The modules import only the standard library, torch and each other, because an exported module embeds their text.
"""
