"""Search spaces: tunables, constraints and derived values of a kernel family, and the valid configs they leave.

``language`` loads and evaluates search-space files, ``diagram`` holds the set of valid configs as a decision diagram,
``moves`` mutates and combines configs.
"""

PUBLIC_MODULES = (
    "columns",
    "data_dirs",
    "diagram",
    "explicit_space",
    "family_modules",
    "family_spaces",
    "language",
    "moves",
    "rulebook",
    "search_space",
    "tunables",
    "valid_space",
)
"""Modules and packages that other packages import."""
