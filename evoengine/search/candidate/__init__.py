"""Evaluation of one candidate: the jobs of a search, the worker side that answers them, and checks of their results."""
