"""A directory that the Python programs of pods find first; see `sitecustomize.py` in it."""
