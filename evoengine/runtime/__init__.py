"""Runtime: what runs a finished kernel inside a user's process, from torch tensors to the driver.

Its modules import the standard library, torch and each other, nothing else: an exported module carries their text.
"""
