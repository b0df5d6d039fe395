"""ZeroMQ: `network` implements the protocols of `transport.network`, `pubsub` carries gossip,
`sockets` sets every option, `connection_guard` ends connections of strangers.
"""
