"""Checks of the order of memory accesses, and static checks of the PTX."""
