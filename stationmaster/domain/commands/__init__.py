"""What a person can type: the grammar of the commands and their parameters."""
