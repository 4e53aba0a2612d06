"""Proposals by a language model: prompts, an OpenAI-compatible endpoint, a budget, and replies that become proposals.

Everything in a reply is data: it becomes a :class:`~evoengine.evolution.records.Proposal` or is rejected with a reason.
"""

PUBLIC_MODULES = ("opening",)
"""Modules and packages that other packages import."""
