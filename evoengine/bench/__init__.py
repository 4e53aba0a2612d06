"""Timing: baseline, samples, racing, duels, energy, and the comparison with peers."""
