"""State of a batch of CTAs that run together: shared memory, asynchronous operations, registers, barriers."""
