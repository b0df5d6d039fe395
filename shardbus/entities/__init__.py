"""Entities in memory: `activation` has their states, `context` their methods, `runner` runs their
handlers, `host` holds a node's shards, `mailboxes`, `passivation` and `remembering` bound and keep
them.
"""
