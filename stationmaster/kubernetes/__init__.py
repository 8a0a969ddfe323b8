"""The Kubernetes side of a run's cluster: connecting, applying objects, reading typed views.

Steps reach it through `services.kubernetes(run_id)`. It is the only caller of the kubernetes client
in the product, and imports it lazily: that import is a third of a second.
"""
