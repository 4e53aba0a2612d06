"""Exchange with other programs: results, rows and problems as files in their formats."""
