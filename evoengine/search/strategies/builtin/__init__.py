"""The built-in strategies: a new one is a new file here, whose name is the strategy's and which declares ``STRATEGY``.

``random.py`` is the shortest example; its sampler implements :class:`evoengine.search.strategies.sampler.Sampler`.
"""
