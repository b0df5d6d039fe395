"""The age of a repair: since when every comparison has ended by its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardbus.replica.exchange import DiskExchange
from shardbus.replication.messages import Ballot, Row
from shardbus.replication.moves import RingDisk
from shardbus.replication.ring import RingMember, first_ring
from shardbus.replication.values import StateValue, state_key
from shardbus.wire.disk_frames import decode_disk_request, encode_disk_answer
from shardbus.wire.replica_frames import ReplicaFrame

RING = first_ring((RingMember(1), RingMember(2)), 2)
KEY = state_key("cart", "a")
BALLOT = Ballot(1, 0, 5, 1)


class Turns:
    """A disk whose syncs end at once."""

    def after_sync(self, call: Callable[[], None], answers: int = 1) -> None:
        call()

    def soon(self) -> None:
        pass


class Pair:
    """An exchange, and the other disk; `answers` False: that one is silent."""

    def __init__(self) -> None:
        self.now, self.answers = 0.0, True
        self.place, self.other = RingDisk(1), RingDisk(2)
        for place in (self.place, self.other):
            place.adopt(RING, 0.0)
        self.other.registers.merge(KEY, Row(BALLOT, BALLOT, StateValue(1, b"abc")), 0.0)
        self.requests: list[bytes] = []
        turns: Any = Turns()
        self.exchange = DiskExchange(
            self.place, turns, self.send, lambda ring: [], lambda: True, lambda: self.now, 60.0
        )
        self.exchange._loop = self  # type: ignore[assignment]

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        return self

    def cancel(self) -> None:
        pass

    def send(self, disk: int, kind: ReplicaFrame, body: bytes) -> bool:
        self.requests.append(body)
        return True

    def repair(self) -> None:
        self.exchange._begin_repair()
        while self.requests and self.answers:
            request = decode_disk_request(self.requests.pop(0))
            answer = self.other.show(request, self.now)
            for part in encode_disk_answer(2, answer):
                self.exchange.on_rows(part)


def test_a_repair_has_passed_once_every_comparison_is_answered() -> None:
    pair = Pair()
    pair.now = 100.0
    assert pair.exchange.facts["age"] == 100.0
    pair.repair()
    facts = pair.exchange.facts
    assert (facts["age"], facts["rows"], facts["bytes"]) == (0.0, 1, len(KEY) + 3)
    assert pair.place.registers.rows == pair.other.registers.rows

    pair.now, pair.answers = 160.0, False
    pair.repair()
    for _ in range(100):
        pair.now += 10.0
        pair.exchange.ask(pair.place.tick(pair.now))
    assert not pair.place.comparing, "it is left to the next repair"
    assert pair.exchange.facts["age"] == pair.now - 100.0
    pair.answers = True
    pair.requests.clear()
    pair.repair()
    assert pair.exchange.facts["age"] == 0.0


def test_a_repair_waits_for_a_disk_that_is_away() -> None:
    pair = Pair()
    pair.place.away.add(2)
    pair.now = 50.0
    pair.repair()
    assert pair.exchange.facts["age"] == 50.0
    pair.place.away.clear()
    pair.repair()
    assert pair.exchange.facts["age"] == 0.0
