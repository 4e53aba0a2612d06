"""The search: strategies, the evaluation road, and the loop that joins them."""
