"""The `shardbus` command: starts nodes, asks running ones, sends messages."""
