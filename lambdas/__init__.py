"""The Lambda functions: `steps` has those of the workflows, the others have a module each."""
