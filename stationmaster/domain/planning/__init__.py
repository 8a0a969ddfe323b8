"""What a command would need: memory, speed, cost, and the warnings that belong to it."""
