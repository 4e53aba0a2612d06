"""Programs around a kernel: compute-sanitizer, Nsight Compute and the interpretation of its counters."""
