"""Search-space files: loader, expressions, constraints and conditions."""
