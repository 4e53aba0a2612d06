"""Parsing of PTX text and analysis of its control flow and dependencies."""
