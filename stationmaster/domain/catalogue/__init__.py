"""What can be trained, on what: models, recipes, instance types, and repositories of the hub."""
