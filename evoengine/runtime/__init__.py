"""Runtime: runs finished kernels inside a user's process, from torch tensors to the CUDA driver.

The modules import only the standard library, torch and each other, because an exported module embeds their text.
"""

PUBLIC_MODULES = (
    "autocast",
    "call",
    "dispatch",
    "first_use_check",
    "launcher",
    "lookup",
    "map_arguments",
    "map_encoding",
    "ops",
    "sdpa_arguments",
    "torch_fallback",
)
"""Modules and packages that other packages import."""
