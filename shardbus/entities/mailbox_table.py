"""The durable mailboxes of one type on one node, by entity and by shard.

A shard that stops asks after each store operation whether its mailboxes are settled. With many
mailboxes that must not cost a look at all of them: one that stops and is settled stays so, and is
looked at no more.

Source: docs/how-to/deliver.md; S3.77.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardbus.deliveries.durable_mailbox import DurableMailbox
from shardbus.entities.activation import Activation, Shard


class EntityMailbox:
    """The mailbox of one entity of a shard here."""

    __slots__ = (
        "at",
        "closed",
        "counted",
        "hosted",
        "journal",
        "key",
        "listed",
        "machine",
        "taker",
        "timer",
        "turn",
    )

    def __init__(self, key: str, hosted: Shard, machine: DurableMailbox) -> None:
        self.key, self.hosted, self.machine = key, hosted, machine
        self.journal = f"{hosted.shard}/{key}"
        """The name of its journal."""
        self.listed: asyncio.Future[None] | None = None
        """Done once the store lists the entity; None: it was not asked to."""
        self.taker: Activation | None = None
        """The activation that has the message in hand."""
        self.turn = 0
        """Grows with each message that is handed over."""
        self.timer: asyncio.TimerHandle | None = None
        self.at = 0.0
        """When it fires."""
        self.counted = 0
        """The bytes of its messages that are counted."""
        self.closed = False


class _ShardMailboxes:
    """The mailboxes of one shard. `unsettled`: those that may have work under way."""

    __slots__ = ("all", "is_stopping", "unsettled")

    def __init__(self) -> None:
        self.all: dict[EntityMailbox, None] = {}
        self.unsettled: dict[EntityMailbox, None] = {}
        self.is_stopping = False


class MailboxTable:
    """Mailboxes, each added once and removed once."""

    def __init__(self) -> None:
        self.by_key: dict[str, EntityMailbox] = {}
        """The mailbox of each entity."""
        self._by_shard: dict[Shard, _ShardMailboxes] = {}

    def add(self, box: EntityMailbox) -> None:
        """Add the mailbox of an entity that has none here."""
        self.by_key[box.key] = box
        entry = self._by_shard.get(box.hosted)
        if entry is None:
            entry = self._by_shard[box.hosted] = _ShardMailboxes()
        entry.all[box] = entry.unsettled[box] = None

    def remove(self, box: EntityMailbox) -> None:
        """Remove a mailbox, if it is here."""
        if self.by_key.get(box.key) is box:
            del self.by_key[box.key]
        entry = self._by_shard.get(box.hosted)
        if entry is not None:
            entry.all.pop(box, None)
            entry.unsettled.pop(box, None)
            if not entry.all:
                del self._by_shard[box.hosted]

    def of(self, hosted: Shard) -> list[EntityMailbox]:
        """Return the mailboxes of a shard."""
        entry = self._by_shard.get(hosted)
        return [] if entry is None else list(entry.all)

    def settles(self, hosted: Shard, stop: Callable[[EntityMailbox], object]) -> bool:
        """True if no mailbox of a shard that stops has work under way. `stop` stops one, which may
        remove it; it is called once for each, for all of them at the first call."""
        entry = self._by_shard.get(hosted)
        if entry is None:
            return True
        if not entry.is_stopping:
            entry.is_stopping = True
            for box in list(entry.all):
                stop(box)
        unsettled = entry.unsettled
        while unsettled:
            box = next(iter(unsettled))
            if not box.machine.stopping:  # it came after the first call
                stop(box)
            if not box.machine.is_settled and not box.closed:
                return False
            unsettled.pop(box, None)
        return True

    def clear(self) -> None:
        """Remove all."""
        self.by_key.clear()
        self._by_shard.clear()
