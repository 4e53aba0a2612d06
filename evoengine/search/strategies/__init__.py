"""Search strategies: the ask-and-tell protocols, the built-in samplers, and what they share."""
