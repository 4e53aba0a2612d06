"""Analytic counts, one module per kernel family, found by :func:`evoengine.costmodel.family_counts.counts_of`.

Each module defines ``COUNTS``, a class that implements :class:`~evoengine.costmodel.family_counts.FamilyCounts`.
Families of warpgroups are simulated instead (:mod:`evoengine.costmodel.simulated_families`). A family without a module
in either package has no forecast: a search of it starts without a screening by predicted time.
"""
