"""Reference results: attention in float64, same-precision SDPA, and the error bounds derived from both."""
