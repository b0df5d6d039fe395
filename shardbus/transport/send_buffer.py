"""The send buffer: the bound on the messages that a session keeps for senders that do not wait.

    await tell     waits while the window is full, so a sender holds at most the window and the one
                   message that it waits with
    tell           does not wait; the session keeps the message, up to the limit
    over that      BufferFull, counted; an ask fails with the same error

The bytes that one session holds, unsent or unacknowledged, are compared with the limit where a run
of messages is opened, and only while the window is full: most messages pay nothing for it. An open
run grows until its batch is full, so the limit is exceeded by one batch at most. Messages that this
process has accepted before are never refused: messages that it forwards, messages that waited here
for a home or come back from a lost session, answers, and control messages.

Source: docs/guarantees.md; N.16; I11.
"""

from __future__ import annotations

from shardbus.errors import BufferFull

SEND_BUFFER_BYTES = 256 * 1024 * 1024
SEND_BUFFER_FULL = "send_buffer_full"


class SendBufferLimit:
    """The limit of each session of a process, in bytes; one object for all of them."""

    __slots__ = ("bytes", "refused")

    def __init__(self, bytes: int = SEND_BUFFER_BYTES) -> None:
        self.bytes = bytes
        self.refused: dict[str, int] = {}
        """Refused messages, by entity type."""

    def refusal(self, entity_type: str, name: str) -> BufferFull:
        """Count a refused message for the process of that name. Returns the sender's error."""
        self.refused[entity_type] = self.refused.get(entity_type, 0) + 1
        return BufferFull(
            f"the send buffer to {name} holds {self.bytes} bytes", hint="await your tells"
        )
