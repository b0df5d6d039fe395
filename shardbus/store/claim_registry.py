"""The record of the cluster that holds the store's claim (`membership.claim_record`).

It is kept as the state of an entity of a reserved type, always under one fence: any member may
write it, and a late write is replaced with the next renewal. The claim itself is a lease. So every
store that keeps states and leases can keep both.

Source: B.144; docs/how-to/own-store.md.
"""

from __future__ import annotations

import msgspec

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.founding import FOUNDING, owner_of
from shardbus.store.protocol import Lease, Save, StateStore

RESERVED = "$cluster"
"""The entity type of the record; no application can have a type of that name."""
SHARD, ID, FENCE = "all", "claim", 1
OP_ID_MAX = 2**63


class _Stored(msgspec.Struct, omit_defaults=True):
    number: int
    counter: int
    beat: int
    members: list[str]
    contacts: list[str] = msgspec.field(default_factory=list, name="known")
    complete: bool = True


async def read(store: StateStore) -> ClaimRecord | None:
    """Return the record; None if there is none, or one of a later release. Raises
    StoreUnavailable."""
    data = await store.load_state(RESERVED, SHARD, ID, FENCE)
    if data is None:
        return None
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
        members, contacts = (
            tuple(map(Address.parse, texts)) for texts in (stored.members, stored.contacts)
        )
    except (msgspec.DecodeError, ConfigError):
        return None
    return ClaimRecord(
        stored.number, stored.counter, stored.beat, members, contacts, stored.complete
    )


async def write(store: StateStore, record: ClaimRecord) -> None:
    """Replace the record. Raises StoreError."""
    members, contacts = (
        [str(address) for address in addresses] for addresses in (record.members, record.contacts)
    )
    stored = _Stored(record.number, record.counter, record.beat, members, contacts, record.complete)
    data = msgspec.msgpack.encode(stored)
    save = Save(RESERVED, SHARD, ID, FENCE, data, record.beat % OP_ID_MAX)
    (refused,) = await store.save_states([save])
    if refused is not None:
        raise refused


async def free(store: StateStore, record: ClaimRecord) -> None:
    """Release the claim of this cluster; a later claim stays. Raises StoreUnavailable."""
    await store.release_lease(Lease(FOUNDING, owner_of(record.number), record.counter))
