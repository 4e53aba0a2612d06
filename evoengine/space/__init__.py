"""Search spaces: tunables, constraints and derived values of a kernel family, and the valid configs they leave.

``loader`` reads search-space files, ``language`` evaluates their rules, ``diagram`` holds the set of valid configs as a
decision diagram, ``moves`` mutates and combines configs.
"""

PUBLIC_MODULES = (
    "columns",
    "data_dirs",
    "explicit_space",
    "family_modules",
    "family_spaces",
    "index_rows",
    "language",
    "loader",
    "moves",
    "rulebook",
    "search_space",
    "tunables",
    "valid_space",
)
"""Modules and packages that other packages import."""
