"""The AWS infrastructure as a CDK application; `app.py` at the root composes it."""
