"""Checks that users can run: of the parity gate, of the acceptance rule, and of a family's tunables."""

PUBLIC_MODULES = (
    "null_control",
    "selftest",
    "tunable_effects",
    "tunables",
)
"""Modules and packages that other packages import."""
