"""Semantics of PTX instructions as functions over NumPy arrays, called by the generated code."""
