"""The trainer: what the pods of a run execute, and what works without the rest of Stationmaster.

Started as `torchrun ... -m training RECIPE [key=value ...] --output-dir DIR`. It knows the recipes
of `stationmaster.domain` and nothing else of the product: no AWS, no Kubernetes, no Slack.
"""
