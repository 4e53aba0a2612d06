"""Templates: their metadata, the prologue of a kernel, and rendering."""
