"""State stores: they keep shard tables, entity state, remembered entities and leases across the end
of a process."""
