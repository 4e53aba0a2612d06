"""Parity gate: inputs, reference results, comparison, controls of the gate itself, and mutants that test it."""

PUBLIC_MODULES = ("compare", "controls", "float_bits", "gate", "inputs", "mutants")
"""Modules and packages that other packages import."""
