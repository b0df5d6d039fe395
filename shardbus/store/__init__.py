"""State stores: they keep shard tables, entity state, remembered entities and leases across the end
of a process. `protocol` lists the needs of shardbus, `opening` finds it by its URL.

    memory://      memory     no method awaits anything
    sqlite:///     sqlite     one thread, one transaction for all waiting requests
    redis://       redis      Lua scripts on the server, found by `redis_scripts` and `redis_keys`
    postgresql://  postgres   one statement, which compares where it writes

**Round trips.** Saves of many entities share them (`group_commit`), and so do loads
(`load_group`). Under load two batches of loads and three of saves are under way, over three
connections to Redis: the server writes one while the node goes on with the answers of the others.
A batch goes to every store by one call, and a callback ends it (`batches`). Saves in one Redis
server need no task: the link writes them to the socket at once, and compares the answer before the
client library sees it (`redis_client`). A node has no further connection for its own calls; scans
and checks of settings open one for as long as they take.

**Places.** Redis keeps the states and the list of a shard under one hash tag, so that a cluster
spreads the shards over its masters and the states of one shard still share a script. The layout of
the keys has a version, and the shard function by which states are placed is recorded
(`placement`); nodes that would look elsewhere do not start, and `migration` moves the states.

**Reading.** Ids are listed page by page, by a cursor that every node understands, and states are
read without a fence, for operators and clients. `outboxes` has the durable senders of clients, for
their processes and for operators. A stored table is read with care (`rows`): a row
that cannot be true is ignored and logged. `outage` and `trouble` describe a store that fails.
"""
