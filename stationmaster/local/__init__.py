"""Local mode: the product on one machine, with loopback endpoints for AWS, Kubernetes and Slack."""
