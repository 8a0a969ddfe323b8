"""One run: its state, what ended its containers, and when it is given up."""
