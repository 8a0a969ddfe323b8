"""What training takes where another framework does it: a module for each, called by `estimators`.

Each has `memory_of`, `step_time`, `checkpoint_bytes` and `assumed_mfu`, with its own arithmetic.
"""
