"""Warm start: the configs that a search tries first, and resuming a study from its stored evaluations."""
