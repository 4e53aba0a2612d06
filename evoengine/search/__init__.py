"""The search: strategies, the evaluation pipeline of a candidate, the champion rule, and the loop that joins them."""
