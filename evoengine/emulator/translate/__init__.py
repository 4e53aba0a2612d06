"""PTX instructions to Python statements over NumPy arrays, one small module per instruction class."""
