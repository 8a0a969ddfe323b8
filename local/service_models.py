"""Botocore's models of the services, read once by the whole process.

Each session of boto3 has a loader of its own, which lists the folders of all services and parses
the list of endpoints and each model that it meets; moto alone makes three sessions when its EC2 is
imported. All of them only read, so importing this module, before moto, lets all sessions of the
process share one loader for each path on which models are looked for.
"""

from __future__ import annotations

import functools

import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
