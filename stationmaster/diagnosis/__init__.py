"""What logs, events, measurements and manifests say about a run, as pure functions of their text.

Nothing here talks to a cluster or to AWS, opens a file, or knows the time: whoever calls passes the
lines in and shows what comes back.
"""
