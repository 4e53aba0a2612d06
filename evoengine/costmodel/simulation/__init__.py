"""Simulation of the phases of kernels on one SM, and of the schedule of their CTAs on all."""
