"""What waits in a region for its shard's home, and why some of it goes nowhere.

A region keeps envelopes in order and never opens them. It asks two things: how much room one takes,
and, where room is wanted, whether anybody still waits for its answer.

Source: S2.65; B.55, B.108.
"""

from __future__ import annotations

from typing import Protocol


class BufferedMessage(Protocol):
    """A message. `size`: bytes it counts for in a buffer. `expired`: an ask whose time is over, and
    whose asker has been told."""

    @property
    def size(self) -> int: ...
    @property
    def expired(self) -> bool: ...


Returned = tuple[tuple[str, BufferedMessage], ...]
"""Envelopes by shard, in order."""

REJECT_BUFFER_FULL = "buffer_full"
REJECT_EXPIRED = "expired"
REJECT_HOP_LIMIT = "hop_limit"
REJECT_REFUSED = "refused"
REJECT_STOPPED = "stopped"
