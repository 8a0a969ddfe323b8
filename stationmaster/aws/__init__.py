"""The product's only callers of boto3: one module for each kind of resource."""
