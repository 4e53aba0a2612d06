"""Cost model: predicts device time without a GPU, from emulated counters or from the config alone."""
