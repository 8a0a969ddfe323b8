"""The controllers, the scheduler and the Training Operator: they turn objects into objects."""
