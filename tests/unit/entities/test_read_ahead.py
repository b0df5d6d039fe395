"""Runs that are read ahead: each entity gets its own message, whatever happens to the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.runs import AHEAD_MAX, AHEAD_MIN, read_ahead
from shardbus.errors import EntityFailed, SchemaError
from shardbus.wire.schema import encode_value
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

MANY = 3 * AHEAD_MIN


@dataclass
class Note:
    number: int
    text: str = ""


class Book(Entity):
    """Writes down its messages."""

    log: list[tuple[str, int]]
    gate: asyncio.Event

    @handler
    def put(self, note: Note) -> int:
        assert type(note) is Note
        if note.text == "fail":
            raise RuntimeError("as told")
        self.log.append((self.context.entity_id, note.number))
        return note.number

    @handler
    async def write(self, note: Note) -> int:
        if note.text == "wait":
            await self.gate.wait()
        return self.put(note)

    @handler
    async def hold(self) -> None:
        await self.gate.wait()

    def receive(self, message: Note) -> int:
        return self.put(message)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(Book, "log", [], raising=False)
    monkeypatch.setattr(Book, "gate", asyncio.Event(), raising=False)
    bus = ShardBus("library")
    bus.entity("book")(Book)
    return Bench(bus)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were read ahead, run by run."""
    numbers: list[int] = []
    depth = read_ahead

    def counted(invoker: Any, payloads: list[bytes]) -> list[Any] | None:
        ahead = depth(invoker, payloads)
        numbers.append(0 if ahead is None else len(ahead))
        return ahead

    monkeypatch.setattr("tests.unit.entities.entity_kit.read_ahead", counted)
    return numbers


def rows(*notes: Note) -> list[tuple[str, tuple[Note]]]:
    return [(f"b{note.number}", (note,)) for note in notes]


def notes() -> list[Note]:
    return [Note(i) for i in range(MANY)]


@pytest.mark.parametrize("how", ["put", "write"])
async def test_each_entity_gets_its_own(bench: Bench, reads: list[int], how: str) -> None:
    bench.tell_many(how, *rows(*notes()))
    assert Book.log == [(f"b{i}", i) for i in range(MANY)]
    assert reads == [MANY]


async def test_receive_as_well(bench: Bench, reads: list[int]) -> None:
    run = [(f"b{i}", encode_value(Note(i)), 0) for i in range(MANY)]
    bench._deliver(":Note", run, None, 0)
    assert Book.log == [(f"b{i}", i) for i in range(MANY)]
    assert reads == [MANY]


@pytest.mark.parametrize("how", ["put", "write"])
async def test_a_busy_entity_gets_its_own_message_later(
    bench: Bench, reads: list[int], how: str
) -> None:
    held = [bench.ask(f"b{i}", "hold") for i in (0, 5, MANY - 1)]
    bench.tell_many(how, *rows(*notes()))
    rest = [i for i in range(MANY) if i not in (0, 5, MANY - 1)]
    assert Book.log == [(f"b{i}", i) for i in rest]
    Book.gate.set()
    await asyncio.gather(*held)
    await turns()
    assert sorted(Book.log) == sorted((f"b{i}", i) for i in range(MANY))
    assert reads[-1] == MANY


async def test_handlers_that_wait_in_between(bench: Bench, reads: list[int]) -> None:
    run = [Note(i, "wait" if i % 3 == 0 else "") for i in range(MANY)]
    bench.tell_many("write", *rows(*run))
    assert Book.log == [(f"b{i}", i) for i in range(MANY) if i % 3]
    Book.gate.set()
    await turns()
    assert sorted(Book.log) == sorted((f"b{i}", i) for i in range(MANY))
    assert reads == [MANY]


@pytest.mark.parametrize("how", ["put", "write"])
async def test_handlers_that_raise_in_between(bench: Bench, reads: list[int], how: str) -> None:
    run = [Note(i, "fail" if i % 4 == 0 else "") for i in range(MANY)]
    bench.tell_many(how, *rows(*run))
    assert Book.log == [(f"b{i}", i) for i in range(MANY) if i % 4]
    assert reads == [MANY]


@pytest.mark.parametrize("how", ["put", "write"])
async def test_a_message_that_does_not_belong_here_is_skipped(
    bench: Bench, reads: list[int], how: str
) -> None:
    invoker = bench.kind.invokers[how]
    ids = [f"b{note.number}" for note in notes()]
    payloads = [encode_value((note,)) for note in notes()]
    ahead = read_ahead(invoker, payloads)
    passed: list[bytes] = []

    def arrive(entity_id: str, payload: bytes, corr: int) -> Any:
        if entity_id in ("b2", "b7"):
            passed.append(payload)
            return None
        return bench.host.activate(bench.host.shards[Bench.SHARD], entity_id)

    find = bench.host.active.get
    bench.host.counts.accepted += len(ids) - 2
    bench.runs.deliver(find, arrive, invoker, None, ids, payloads, 0, 0, (), ahead)
    assert Book.log == [(f"b{i}", i) for i in range(MANY) if i not in (2, 7)]
    assert passed == [encode_value((Note(2),)), encode_value((Note(7),))]


@pytest.mark.parametrize("how", ["put", "write"])
async def test_an_undecodable_message_harms_no_other(
    bench: Bench, reads: list[int], how: str
) -> None:
    bad = [b"\x91\x81\xa6number\xa1x", b"\x91", b"\x90"]
    run, answers = [], []
    for i in range(MANY):
        corr, answer = bench.asker.expect()
        answers.append(answer)
        run.append((f"b{i}", bad[i] if i < len(bad) else encode_value((Note(i),)), corr))
    bench._deliver(how, run, bench.asker, 10_000)
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(o) for o in outcomes[: len(bad)]] == [SchemaError] * len(bad)
    assert outcomes[len(bad) :] == list(range(len(bad), MANY))
    assert reads == [0]
    assert bench.dropped == {"schema": len(bad)}


async def test_asks_are_answered_each_with_its_own(bench: Bench, reads: list[int]) -> None:
    run, answers = [], []
    for i in range(MANY):
        corr, answer = bench.asker.expect()
        answers.append(answer)
        note = Note(i, "fail" if i == 4 else "")
        run.append((f"b{i}", encode_value((note,)), corr))
    bench._deliver("put", run, bench.asker, 10_000)
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(outcomes[4], EntityFailed)
    assert [o for i, o in enumerate(outcomes) if i != 4] == [i for i in range(MANY) if i != 4]
    assert reads == [MANY]


@pytest.mark.parametrize("count", [AHEAD_MIN - 1, AHEAD_MAX + 1])
async def test_short_and_very_long_runs_are_read_one_by_one(
    bench: Bench, reads: list[int], count: int
) -> None:
    bench.tell_many("put", *rows(*(Note(i) for i in range(count))))
    assert len(Book.log) == count
    assert reads == [0]
