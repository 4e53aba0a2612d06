"""PTX instructions that only compute values, as functions over NumPy arrays, called by the generated code."""
