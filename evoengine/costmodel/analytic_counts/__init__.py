"""Analytic counts, one module per kernel family, found by :func:`evoengine.costmodel.family_counts.counts_of`.

Each module defines ``COUNTS``, a class that implements :class:`~evoengine.costmodel.family_counts.FamilyCounts`.
A family without a module has no forecast: a search of it starts without a screening by predicted time.
"""
