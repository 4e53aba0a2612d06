"""Attention kernels of other libraries, one file per library.

A new peer is one new file here, which :mod:`evoengine.bench.peer_registry` finds. It defines ``PEERS``, one
:class:`~evoengine.bench.peer_protocol.Peer` for each row of the table, and ``ORDER``, the file's place in the table;
files with the same place are in alphabetical order.
"""
