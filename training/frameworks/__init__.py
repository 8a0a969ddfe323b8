"""Checkpoints of other frameworks, as models that transformers loads.

`python -m training.frameworks` is the program. `megatron` and `torchtitan` say what a framework
calls each weight, `torch_dist` reads Megatron's files, and `published` writes the model.
"""
