"""Global memory, shared memory, asynchronous copies and the parameter block of a launch."""
