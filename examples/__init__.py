"""Programs that use shardbus, each from its public names alone."""
