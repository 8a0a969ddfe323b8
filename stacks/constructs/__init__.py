"""Building blocks of the stacks: state machines, functions, their permissions and deliveries."""
