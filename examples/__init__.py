"""Programs that use only the public names of shardbus."""
