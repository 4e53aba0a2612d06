"""From config to binary: templates, compilation, the call ABI, and the resources that a binary needs."""

PUBLIC_MODULES = (
    "abi",
    "call",
    "call_memory",
    "compile",
    "memory_layout",
    "records",
    "resources",
    "spilling",
    "tensor_maps",
    "template",
    "variation",
)
"""Modules and packages that other packages import."""
