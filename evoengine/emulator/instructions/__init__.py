"""PTX instructions that act on the state of a batch, called by the generated code."""
