"""Recorded search spaces: the outcome of every config, or of a large sample, on one device."""
