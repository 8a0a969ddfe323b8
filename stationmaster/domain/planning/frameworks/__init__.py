"""What training takes where another framework does it: a module for each, called by `estimators`.

Megatron has arithmetic of its own; torchtitan, of memory, what differs from the own trainer's.
"""
