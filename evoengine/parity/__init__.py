"""Parity gate: inputs, reference results, comparison, controls of the gate itself, and mutants that test it."""
