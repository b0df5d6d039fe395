"""Cluster sharding: the shard table, its messages and events, leases on shards. `coordinator/`
decides where shards live, `region/` hosts them and routes messages, `allocation/` plans.
"""
