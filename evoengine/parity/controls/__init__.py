"""Controls that detect a gate that checks the wrong output: no-op kernels and launch counts."""
