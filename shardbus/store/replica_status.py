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
OTHER_NAME = "a question of its own cluster: it listens, and does not answer"
ANSWERS = {ReplicaFrame.ASK: ReplicaFrame.STATUS, ReplicaFrame.CHECK: ReplicaFrame.CHECKED}


async def ask_replicas(
    network: Network,
    cluster: str,
    addresses: Sequence[Address],
    timeout: float,
    question: ReplicaFrame = ReplicaFrame.ASK,
) -> dict[Address, dict[str, Any]]:
    """Return the facts of each replica. One that does not answer within `timeout` seconds has the
    state `unreachable`; one that listens `silent`, as in a cluster of another name; and one that
    refuses the keys of this process `refused`, with the reason. If none answers, reasons are
    awaited for `DENIAL_S` longer. The network is opened and closed here. `question`: ASK, or CHECK,
    for which a replica reads its log first."""
    questions = _Questions(network, cluster, addresses, question)
    questions.begin()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(questions.complete.wait(), timeout)
        if not questions.facts:  # The keys of this process may be the reason.
            with suppress(TimeoutError):
                await asyncio.wait_for(questions.complete.wait(), DENIAL_S)
    finally:
        questions.end()
    return questions.outcome()


class _Questions:
    """One question to each address. `complete` is set once each has answered or refused."""

    def __init__(
        self,
        network: Network,
        cluster: str,
        addresses: Sequence[Address],
        question: ReplicaFrame,
    ) -> None:
        self._network, self._addresses = network, addresses
        self._question, self._mark = question, cluster_mark(cluster)
        self.complete = asyncio.Event()
        self.facts: dict[Address, dict[str, Any]] = {}
        self._denials: dict[Address, str] = {}
        self._listening: set[Address] = set()
        self._links: dict[Address, Connection] = {}

    def begin(self) -> None:
        """Open the network, and send the question over each connection that comes up."""
        self._network.open(asyncio.get_running_loop())
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        for address in self._addresses:
            self._links[address] = self._network.connect(
                address,
                partial(self._on_frame, address),
                partial(self._on_up, address),
                nothing,
                partial(self._on_denied, address),
            )

    def end(self) -> None:
        """Close the network."""
        for link in self._links.values():
            link.close()
        self._network.close()

    def outcome(self) -> dict[Address, dict[str, Any]]:
        """Return the facts of each address, and of one without an answer the reason."""
        states = dict.fromkeys(self._listening, ("silent", OTHER_NAME))
        states |= {address: ("refused", reason) for address, reason in self._denials.items()}
        outcome: dict[Address, dict[str, Any]] = {}
        for address in self._addresses:
            state, why = states.get(address, ("unreachable", ""))
            silent = {"address": str(address), "state": state, "waits_for": why}
            outcome[address] = self.facts.get(address, silent)
        return outcome

    def _on_up(self, address: Address) -> None:
        self._listening.add(address)
        if (link := self._links.get(address)) is not None:
            link.send(encode_head(self._question, self._mark), b"")

    def _on_frame(self, address: Address, parts: list[bytes]) -> None:
        head = decode_head(parts[0]) if len(parts) == 2 else None
        is_answer = head is not None and head.kind is ANSWERS[self._question]
        if head is None or not is_answer or head.cluster != self._mark:
            return
        try:
            self.facts[address] = msgspec.json.decode(parts[1], type=dict[str, Any])
        except msgspec.MsgspecError:
            return
        self._note_complete()

    def _on_denied(self, address: Address, reason: str) -> None:
        self._denials[address] = reason
        self._note_complete()

    def _note_complete(self) -> None:
        if len(self.facts.keys() | self._denials.keys()) == len(self._addresses):
            self.complete.set()
