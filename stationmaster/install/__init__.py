"""Sets up .venv for the Makefile. Standard library only: it runs before anything is installed."""
