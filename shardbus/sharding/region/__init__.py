"""A region of one entity type: `region` hosts shards, `registration` and `shutdown` frame it,
`routing` keeps messages in order, `route` has the state of one shard and its buffers.
"""
