"""The stager: brings the objects of a bucket to a run's file system, whole and once.

It knows S3 and the file system, and nothing of workflows.
"""
