"""Worker processes of a search as job services: compilers, device workers and forecasts."""
