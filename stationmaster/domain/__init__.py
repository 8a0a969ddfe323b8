"""What the product is about, as pure values: no I/O, no clock, no environment."""
