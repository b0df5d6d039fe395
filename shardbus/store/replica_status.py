"""Asks replicas for facts, for people: `shardbus store status` and `verify`.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from shardbus.ids import Address
from shardbus.transport.network import Connection, Network
from shardbus.wire.replica_frames import ReplicaFrame, cluster_mark, decode_head, encode_head

DENIAL_S = 6.0
"""By then a connection whose every handshake fails has reported it."""
ANSWERS = {ReplicaFrame.ASK: ReplicaFrame.STATUS, ReplicaFrame.CHECK: ReplicaFrame.CHECKED}


async def ask_replicas(
    network: Network,
    cluster: str,
    addresses: Sequence[Address],
    timeout: float,
    question: ReplicaFrame = ReplicaFrame.ASK,
) -> dict[Address, dict[str, Any]]:
    """Return the facts of each replica. One that does not answer within `timeout` seconds has the
    state `unreachable`, and one that refuses the keys of this process `refused`, with the reason;
    if none answers, reasons are awaited for `DENIAL_S` longer. The network is opened and closed
    here. `question`: ASK, or CHECK, for which a replica reads its log first."""
    answer = ANSWERS[question]
    mark, complete = cluster_mark(cluster), asyncio.Event()
    facts: dict[Address, dict[str, Any]] = {}
    denials: dict[Address, str] = {}
    network.open(asyncio.get_running_loop())
    links: dict[Address, Connection] = {}

    def on_frame(address: Address, parts: list[bytes]) -> None:
        head = decode_head(parts[0]) if len(parts) == 2 else None
        if head is None or head.cluster != mark or head.kind is not answer:
            return
        try:
            facts[address] = msgspec.json.decode(parts[1], type=dict[str, Any])
        except msgspec.MsgspecError:
            return
        note_complete()

    def note_complete() -> None:
        if len(facts.keys() | denials.keys()) == len(addresses):
            complete.set()

    def ask(address: Address) -> None:
        if (link := links.get(address)) is not None:
            link.send(encode_head(question, mark), b"")

    def on_denied(address: Address, reason: str) -> None:
        denials[address] = reason
        note_complete()

    nothing: Callable[[], None] = lambda: None  # noqa: E731
    for address in addresses:
        links[address] = network.connect(
            address,
            partial(on_frame, address),
            partial(ask, address),
            nothing,
            partial(on_denied, address),
        )
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), timeout)
        if not facts:  # The keys of this process may be the reason.
            with suppress(TimeoutError):
                await asyncio.wait_for(complete.wait(), DENIAL_S)
    finally:
        for link in links.values():
            link.close()
        network.close()
    return {
        address: facts.get(address) or _silent(address, denials.get(address))
        for address in addresses
    }


def _silent(address: Address, denial: str | None) -> dict[str, Any]:
    """Return the facts of a replica that has not answered. `denial`: why it refuses the keys."""
    state = "unreachable" if denial is None else "refused"
    return {"address": str(address), "state": state, "waits_for": denial or ""}
