"""The Lambda functions: one thin module each, and `registry`, which lists what is deployed."""
