"""Distributed PyTorch training on Amazon EKS, run from a chat channel."""

__version__ = "0.1.0"
