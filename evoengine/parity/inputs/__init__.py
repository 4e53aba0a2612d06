"""Inputs of the parity gate: shapes, seeded value profiles, row samples, and the pool that candidates draw from."""
