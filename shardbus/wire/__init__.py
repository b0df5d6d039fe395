"""Messages as bytes, without input or output: `batch` frames, `schema` the types of handlers,
`control` the messages of machines, `gossip` and `state` the messages of membership.
"""
