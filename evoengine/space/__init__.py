"""Search spaces: tunables, constraints and derived values of a kernel family, and the valid configs they leave.

``language`` loads and evaluates search-space files, ``diagram`` holds the set of valid configs as a decision diagram,
``moves`` mutates and combines configs.
"""
