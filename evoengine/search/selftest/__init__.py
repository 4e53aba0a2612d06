"""The self-test: the parity gate on wrong kernels and control kernels, and the champion rule on equal kernels."""
