"""The product's only callers of boto3: one module for each AWS service that it talks to."""
