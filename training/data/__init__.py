"""What the trainer learns from: data sets on disk or on the Hub, and each rank's part of a step.

Every source gives the same samples in the same order for any number of ranks: one global counter of
samples decides which sample comes next.
"""
