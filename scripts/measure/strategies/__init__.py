"""Parts of ``strategy_benchmark.py``: tasks, peers, runs and their cache, statistics, page and chart."""
