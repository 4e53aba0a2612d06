"""The built-in strategies: one module each, whose name is the strategy's and which declares it as ``STRATEGY``."""
