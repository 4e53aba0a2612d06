"""Simulations, one module per kernel family, found by :func:`evoengine.costmodel.family_counts.simulation_of`.

Each module defines ``SIMULATION``, a class that implements
:class:`~evoengine.costmodel.family_counts.FamilySimulation`.
"""
