"""Measures the figures that the project has targets for; `python -m bench` is the entry point.

Nothing here is part of the product and no test asserts a time: a figure over its limit is printed
as such, and a person decides.
"""
