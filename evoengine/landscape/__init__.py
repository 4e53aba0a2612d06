"""Recorded search spaces: what every config of a space, or of a large sample, did once on a device."""
