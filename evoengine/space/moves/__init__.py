"""Moves between configs: mutation of tunables, and the neighbourhood moves of the evolutionary search."""
