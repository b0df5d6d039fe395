"""Cluster membership as pure state machines. Start with `gossip` (the state), then `cluster` (the
machine). `downing/` decides splits, `failure/` detects failures, `singleton/` places one instance.
"""
