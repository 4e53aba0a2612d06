"""Exchange: rows and problems as files that other programs write and read."""
