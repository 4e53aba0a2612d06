"""From config to binary: templates, compilation, the call ABI, and the resources that a binary needs."""
