"""Cluster sharding: which node hosts which shard.

    table         an immutable value, shard to node and fence, changed by one guarded function
    coordinator/  one for each entity type: epoch, regions, table, starts, balance, moves
    region/       the routes of one node, proxy or client for one type: it registers, hosts, keeps
                  messages without a route in order. A proxy hosts nothing, a client does not
                  register
    allocation/   strategies: pure functions from table and candidates to homes and moves. The
                  coordinator checks their result, and calls a user's strategy in a thread
    overrides     an operator's settings: places, and whether and how fast shards move. Stored as
                  the state of an entity, under the coordinator's epoch, and read with the claim
    leases        shards or a coordinator run only while the store confirms it, with `use_lease`
    messages, events, timers

docs/protocols.md has a move, a takeover and the states of a lease.
"""
