"""Execution of batches of CTAs: warp scheduling, barriers, suspended lanes, and splitting a batch in two."""
