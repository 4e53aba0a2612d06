"""Every evaluation ever made, ranked: the SQLite store."""
