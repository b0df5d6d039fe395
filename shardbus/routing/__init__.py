"""From a reference to the node that hosts the entity: `refs` and `region` are what senders hold,
`router` is the hot path, `pending_message` is a message that waits for its home.
"""
