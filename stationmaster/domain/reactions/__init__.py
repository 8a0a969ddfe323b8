"""What follows when something is seen: of a run (`run`), and of a cluster (`cluster`). Pure.

The store, the steps and the recorder carry out what is decided here, and decide nothing.
"""
