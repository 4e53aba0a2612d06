"""SQLite store of all evaluations, their ranking and the champions."""
