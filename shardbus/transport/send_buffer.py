"""The bound on what a process keeps for others, for senders that do not wait.

    await tell     over the window: waits. A sender has no more here than the window and the one
                   message that it waits with
    tell           does not wait, and the link keeps it ... up to the allowance
    over that      BufferFull, counted; an ask fails with the same

What one link holds, unsent or unacknowledged, is compared where a run of messages is begun, and
only while the window is closed: most messages pay nothing for it. An open run goes on until its
batch is full, so the bound is exceeded by one batch at most. What this process has taken already is
never refused: messages that it sends on, that waited here for a home or come back from a lost link,
answers, and the machines' messages.

Source: docs/guarantees.md; N.16; I11.
"""

from __future__ import annotations

from shardbus.errors import BufferFull

SEND_BUFFER_BYTES = 256 * 1024 * 1024
SEND_BUFFER_FULL = "send_buffer_full"


class SendBufferLimit:
    """See the module; one for all links of a process, each of which may hold so many bytes."""

    __slots__ = ("bytes", "refused")

    def __init__(self, bytes: int = SEND_BUFFER_BYTES) -> None:
        self.bytes = bytes
        self.refused: dict[str, int] = {}
        """Messages that were not taken, by entity type."""

    def refusal(self, entity_type: str, name: str) -> BufferFull:
        """Count a message for the process of that name; what its sender is told."""
        self.refused[entity_type] = self.refused.get(entity_type, 0) + 1
        return BufferFull(
            f"the send buffer to {name} holds {self.bytes} bytes", hint="await your tells"
        )
