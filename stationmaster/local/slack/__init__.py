"""Slack on this machine: a subset of the Web API with Slack's limits, and a page to use it from.

`server.LocalSlack` is the whole of it; the local mode composes it with the shipped bot, which
cannot see it from slack.com but for the base URL.
"""
