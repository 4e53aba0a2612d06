"""Translation of PTX instructions to Python statements over NumPy arrays, one module per instruction class."""
