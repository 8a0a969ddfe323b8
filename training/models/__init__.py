"""What the trainer learns: models of transformers, built without memory and filled in place."""
