"""The flights example: the log of an aircraft is exact whatever a sender repeats, and the producer
repeats as it must."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights import replay as producer
from examples.flights.app import Aircraft, Flight, FlightLog, Gap
from examples.flights.outage import one_per_shard, percentile
from examples.flights.replay import GaveUp, Replay, insist
from examples.flights.rows import Row, read, straight, total
from shardbus import AsyncClient, ConfigError, NodeLost, SchemaError

FLIGHT = Flight("2013-01-01T10:00:00Z", "UA", 1545, "EWR", "IAH", 2, 11, 227, 1400)
UNKNOWN = Flight("2013-01-01T10:00:00Z", "UA", 1545, "EWR", "IAH", None, None, None, 1400)


class StoredAircraft(Aircraft):
    """An aircraft whose saves are counted."""

    def __init__(self) -> None:
        self.state = FlightLog()
        self.saves = 0

    async def save(self) -> None:
        self.saves += 1


# ---- the entity


async def test_a_row_that_comes_again_is_answered_and_not_applied():
    aircraft = StoredAircraft()
    assert [await aircraft.record(seq, FLIGHT) for seq in (1, 1, 2, 1, 2)] == [1, 1, 2, 2, 2]
    assert aircraft.summary() == FlightLog(2, 2, 2800, 2, 22)
    assert aircraft.saves == 2


async def test_a_row_after_a_gap_is_refused():
    aircraft = StoredAircraft()
    await aircraft.record(1, FLIGHT)
    with pytest.raises(Gap, match="row 3 came when 1"):
        await aircraft.record(3, FLIGHT)
    assert aircraft.summary() == FlightLog(1, 1, 1400, 1, 11)


async def test_an_unknown_delay_counts_as_a_flight_and_not_as_a_delay_of_nothing():
    aircraft = StoredAircraft()
    await aircraft.record(1, UNKNOWN)
    assert aircraft.summary() == FlightLog(1, 1, 1400, 0, 0)


@given(st.lists(st.integers(1, 4), max_size=8))
def test_any_repetition_ends_where_the_rows_once_would(repeats):
    aircraft = StoredAircraft()

    async def send() -> None:
        for seq, times in enumerate(repeats, start=1):
            for _ in range(times):
                await aircraft.record(seq, FLIGHT)

    asyncio.run(send())
    rows = [Row("N1", seq, FLIGHT) for seq in range(1, len(repeats) + 1)]
    assert aircraft.summary() == straight(rows).get("N1", FlightLog())


# ---- the file


def test_the_file_is_the_one_that_the_documents_speak_of():
    rows = list(read())
    logs = straight(rows)
    assert len(rows) == 27_004
    assert sum(not row.tailnum for row in rows) == 155
    assert len(logs) == 3148
    assert total(logs.values()) == FlightLog(26_849, 26_849, 27_107_042, 26_398, 161_819)
    assert all(log.applied == log.flights for log in logs.values())


# ---- the producer


async def stream(*rows: Row) -> AsyncIterator[Row]:
    for row in rows:
        yield row


class Cluster:
    """In the place of a client: aircraft that fail before or after they applied a row."""

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.aircraft: dict[str, StoredAircraft] = {}
        self.called: list[tuple[str, int]] = []

    def ref(self, kind: type, tailnum: str) -> Cluster.Ref:
        if not tailnum:
            raise ConfigError("an entity id must have 1 to 256 bytes of UTF-8, this one has 0")
        return Cluster.Ref(self, tailnum)

    class Ref:
        def __init__(self, cluster: Cluster, tailnum: str) -> None:
            self.cluster, self.tailnum = cluster, tailnum

        async def record(self, seq: int, flight: Flight) -> int:
            self.cluster.called.append((self.tailnum, seq))
            aircraft = self.cluster.aircraft.setdefault(self.tailnum, StoredAircraft())
            failure = self.cluster.failures.pop(0) if self.cluster.failures else ""
            if failure == "before":
                raise NodeLost("the node died")
            flights = await aircraft.record(seq, flight)
            if failure == "after":
                raise NodeLost("the node died")
            return flights


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(producer, "PAUSE_S", 0.0)


async def test_rows_are_sent_until_they_are_answered_and_count_once():
    cluster = Cluster("before", "after", "", "after", "before", "")
    replay = Replay(cast("AsyncClient", cluster))
    await replay.run(stream(Row("N1", 1, FLIGHT), Row("N1", 2, FLIGHT), Row("N1", 3, FLIGHT)))
    assert cluster.aircraft["N1"].state == FlightLog(3, 3, 4200, 3, 33)
    assert [seq for _, seq in cluster.called] == [1, 1, 1, 2, 2, 2, 3]
    assert replay.recorded == 3
    assert replay.resent == Counter(NodeLost=4)


async def test_a_row_without_a_tail_number_is_refused_and_counted():
    cluster = Cluster()
    replay = Replay(cast("AsyncClient", cluster))
    await replay.run(stream(Row("", 1, FLIGHT), Row("N1", 1, FLIGHT), Row("", 2, FLIGHT)))
    assert (replay.recorded, replay.refused, replay.done) == (1, 2, 3)
    assert replay.refusal.startswith("ConfigError: an entity id must have 1 to 256 bytes")
    assert "" not in cluster.aircraft


async def test_more_rows_than_go_side_by_side(monkeypatch):
    monkeypatch.setattr(producer, "SIDE_BY_SIDE", 2)
    cluster = Cluster()
    rows = [Row(f"N{i % 5}", 1 + i // 5, FLIGHT) for i in range(50)]
    await Replay(cast("AsyncClient", cluster)).run(stream(*rows))
    assert {name: a.state for name, a in cluster.aircraft.items()} == straight(rows)


async def test_insisting_has_an_end():
    async def call() -> None:
        raise NodeLost("the node died")

    resent: Counter[str] = Counter()
    with pytest.raises(GaveUp, match="40 attempts, the last: NodeLost"):
        await insist(call, resent)
    assert resent["NodeLost"] == 39


async def test_an_error_that_would_come_again_is_not_insisted_on():
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)
        raise SchemaError("record: expected int")

    with pytest.raises(SchemaError):
        await insist(call, Counter())
    assert len(calls) == 1


# ---- measurements of the demo


def test_one_aircraft_of_every_shard():
    tailnums = [row.tailnum for row in read() if row.tailnum]
    assert sorted(one_per_shard(tailnums), key=int) == [str(shard) for shard in range(60)]


def test_percentiles():
    assert percentile([0.4, 0.1, 0.2], 0.5) == 0.2
    assert percentile([0.3], 0.99) == 0.3
