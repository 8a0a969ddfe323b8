"""The output of nccl-tests: what was measured, over which network, and whether that is enough."""
