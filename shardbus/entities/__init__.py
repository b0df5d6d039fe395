"""Entities in memory: `activation` has their states, `context` what they call, `runner` runs their
handlers, `host` holds a node's shards, `mailboxes`, `passivation` and `remembering` bound and keep
them.
"""
