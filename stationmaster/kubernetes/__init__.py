"""The Kubernetes side of a run's cluster: connecting, applying objects, reading typed views.

It is the product's only caller of the kubernetes client, whose import takes a third of a second and
so is lazy. Steps reach it through `services.kubernetes(run_id)`.
"""
