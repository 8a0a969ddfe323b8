"""The saver: brings what a run leaves on its file system to the bucket of results.

It knows S3, the file system and the pods' logs, and nothing of workflows.
"""
