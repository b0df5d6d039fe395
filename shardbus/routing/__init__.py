"""From a reference to the node that hosts the entity: senders hold `refs` and a `region`, `router`
is the hot path, `pending_message` is a message that waits for its home.
"""
