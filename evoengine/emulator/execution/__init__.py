"""Execution of batches of CTAs: their state, warp scheduling, barriers, and splitting a batch in two."""
