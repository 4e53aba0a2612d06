"""Attention kernels of other libraries, one file per library; :mod:`evoengine.bench.peer_registry` finds them."""
