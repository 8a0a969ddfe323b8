"""What the product is about, as pure values: no I/O, no clock, no environment.

recipes and instances are the catalogues, plan says what a request would create and cost, grammar
reads what a person typed, run and events are the life of a run, errors is the one error tree.
"""
