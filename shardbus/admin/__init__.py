"""Inspection and commands for operators: `pages` has the pages behind HTTP, and the answers to the
questions of other nodes; `shard_control` passes commands to coordinators, `metrics` renders
Prometheus text.
"""
