"""Asks replicas for facts, for people: `shardbus store status` and `verify`.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shardbus.ids import Address
from shardbus.transport.network import Connection, Network
from shardbus.wire.replica_frames import ReplicaFrame, cluster_mark, decode_head, encode_head

ANSWERS = {ReplicaFrame.ASK: ReplicaFrame.STATUS, ReplicaFrame.CHECK: ReplicaFrame.CHECKED}


async def ask_replicas(
    network: Network,
    cluster: str,
    addresses: Sequence[Address],
    timeout: float,
    question: ReplicaFrame = ReplicaFrame.ASK,
) -> dict[Address, dict[str, Any]]:
    """Return the facts of each replica. One that does not answer within `timeout` seconds has the
    state `unreachable`. The network is opened and closed here. `question`: ASK, or CHECK, for which
    a replica reads its log first."""
    answer = ANSWERS[question]
    mark, complete = cluster_mark(cluster), asyncio.Event()
    facts: dict[Address, dict[str, Any]] = {}
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
        if len(facts) == len(addresses):
            complete.set()

    def ask(address: Address) -> None:
        if (link := links.get(address)) is not None:
            link.send(encode_head(question, mark), b"")

    nothing: Callable[[], None] = lambda: None  # noqa: E731
    for address in addresses:
        links[address] = network.connect(
            address, partial(on_frame, address), partial(ask, address), nothing
        )
    try:
        async with asyncio.timeout(timeout):
            await complete.wait()
    except TimeoutError:
        pass
    finally:
        for link in links.values():
            link.close()
        network.close()
    silent = {"state": "unreachable", "waits_for": ""}
    return {one: facts.get(one) or {"address": str(one), **silent} for one in addresses}
