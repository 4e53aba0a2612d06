"""Report of one study as a self-contained HTML page."""
