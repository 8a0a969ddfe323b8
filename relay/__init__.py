"""The watcher inside a run's cluster: job, pods, warnings, nodes and logs, told on the bus."""
