"""State stores: where shard tables, entity state, remembered entities and leases outlive the
process."""
