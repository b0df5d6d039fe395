"""The `shardbus` command: start nodes, query running ones, send messages."""
