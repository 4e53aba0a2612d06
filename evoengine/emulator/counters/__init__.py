"""Counters of a launch: instructions by pipe, wavefronts and bank conflicts, sectors, divergent warps."""
