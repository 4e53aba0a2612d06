"""Inputs of the parity gate: shapes, seeded value profiles, row samples, and the pool that candidates draw from."""

PUBLIC_MODULES = ("case", "cases", "pool", "profiles")
"""Modules and packages that other packages import."""
