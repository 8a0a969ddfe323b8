"""The watcher inside a run's cluster: job, pods, warnings, nodes and logs, reported on the bus."""
