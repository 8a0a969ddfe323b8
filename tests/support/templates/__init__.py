"""Reads the synthesized templates, and says what account they make; used by tests of stacks."""
