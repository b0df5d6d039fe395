"""The way of a call to the masters of a Redis Cluster, with servers with prepared answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import exceptions as redis_errors

from benchmarks.redis_cluster import measured
from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.store.protocol import Save
from shardbus.store.redis_cluster import ClusterLink, ClusterMap
from shardbus.store.redis_keys import slot_of
from shardbus.store.redis_link import RedisSession
from shardbus.store.redis_scripts import EXPIRE_STATES, LOAD_STATES, REMEMBER, SAVE_STATES

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
LOW, HIGH = "{b}:k", "{a}:k"
"""Keys in the first and in the second half of the slots."""
OUT_OF_MEMORY = redis_errors.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")


class Servers:
    """A cluster of two masters. `answers` has a server's answer to a call, in place of its own
    address, once each; `away` are servers that refuse connections."""

    def __init__(self) -> None:
        self.slots = [(0, 8191, A), (8192, 16383, B)]
        self.answers: dict[Address, list[Any]] = {}
        self.away: set[Address] = set()
        self.calls: list[tuple[Address, bool, int]] = []
        """The server, whether ASKING came before, and the number of keys."""
        self.sequences: list[str] = []
        self.slot_requests = 0

    def connect(self, at: Address) -> Client:
        return Client(self, at)


class Client:
    def __init__(self, servers: Servers, at: Address, *, queues: bool = False) -> None:
        self.servers, self.at, self.queues = servers, at, queues
        self.asking, self.queued = False, list[tuple[Any, ...]]()

    def pipeline(self, transaction: Any = None) -> Client:
        return Client(self.servers, self.at, queues=True)

    def execute_command(self, *args: Any) -> Any:
        self.queued.append(args)
        return self if self.queues else self._single()

    async def _single(self) -> Any:
        [answer] = await self.execute()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def execute(self, raise_on_error: bool = False) -> list[Any]:
        await asyncio.sleep(0)
        if self.at in self.servers.away:
            raise redis_errors.ConnectionError("refused")
        queued, self.queued = self.queued, []
        return [self._answer(*args) for args in queued]

    def _answer(self, name: str, *args: Any) -> Any:
        if name == "CLUSTER SLOTS":
            self.servers.slot_requests += 1
            return [
                [first, last, [at.host.encode(), at.port, b"id"]]
                for first, last, at in self.servers.slots
            ]
        if name == "INFO":
            return {"run_id": str(self.at.port)}
        if name == "ASKING":
            self.asking = True
            return b"OK"
        self.servers.calls.append((self.at, self.asking, args[1]))
        self.servers.sequences.append(args[3 + args[1]])
        self.asking = False
        answer = self.servers.answers.get(self.at)
        return answer.pop(0) if answer else [str(self.at).encode()] * args[1]

    async def aclose(self) -> None: ...


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def lost() -> list[int]:
    return []


@pytest.fixture
async def link(servers: Servers, lost: list[int]) -> AsyncIterator[ClusterLink]:
    session = RedisSession("a" * 10, "redis+cluster://h")
    session.on_new_server = lambda: lost.append(1)
    slots = ClusterMap([A], servers.connect, "h", lambda n: f"{{{n}}}", timeout=60.0)
    slots.on_new_master = session.on_new_server
    await slots.refresh()
    link = ClusterLink(slots, session, timeout=60.0)
    link.open(fsync=False, replicas=0)
    yield link
    await link.close()


def moved(to: Address, key: str = LOW) -> redis_errors.MovedError:
    return redis_errors.MovedError(f"{slot_of(key)} {to}")


def ask(to: Address) -> redis_errors.AskError:
    return redis_errors.AskError(f"{slot_of(LOW)} {to}")


def try_again() -> redis_errors.TryAgainError:
    return redis_errors.TryAgainError("Multiple keys request during rehashing of slot")


def test_the_keys_are_in_the_two_halves() -> None:
    assert slot_of(LOW) < 8192 <= slot_of(HIGH)


async def test_a_call_goes_to_the_master_of_its_slot(servers: Servers, link: ClusterLink) -> None:
    assert await link.call(LOAD_STATES, [LOW], "1") == [str(A).encode()]
    assert await link.call(LOAD_STATES, [HIGH], "1") == [str(B).encode()]
    assert servers.calls == [(A, False, 1), (B, False, 1)]


async def test_a_slot_that_has_moved_is_followed_and_remembered(
    servers: Servers, link: ClusterLink, lost: list[int]
) -> None:
    servers.answers[A] = [moved(B)]
    for _ in range(2):
        assert await link.call(LOAD_STATES, [LOW], "1") == [str(B).encode()]
    assert [at for at, _, _ in servers.calls] == [A, B, B]
    assert servers.slot_requests == 1, "the map is not asked for again"
    assert lost == [], "a known master has lost nothing"
    assert servers.sequences == sorted(set(servers.sequences)), "each has a number of its own"


async def test_a_slot_on_its_way_is_asked_for_once(servers: Servers, link: ClusterLink) -> None:
    servers.answers[A] = [ask(B)]
    assert await link.call(LOAD_STATES, [LOW], "1") == [str(B).encode()]
    assert await link.call(LOAD_STATES, [LOW], "1") == [str(A).encode()]
    assert servers.calls == [(A, False, 1), (B, True, 1), (A, False, 1)]


async def test_keys_at_two_masters_are_called_one_by_one(
    servers: Servers, link: ClusterLink
) -> None:
    keys = [f"{{b}}:{n}" for n in range(3)]
    servers.answers[A] = [try_again(), [b"x"], ask(B), [b"z"]]
    servers.answers[B] = [[b"y"]]
    assert await link.call(LOAD_STATES, keys, "1", "2", "3") == [b"x", b"y", b"z"]
    servers.answers[A] = [try_again(), [], [1, b"9"], []]
    saves = [Save("cart", "b", str(n), 1, b"", n) for n in range(3)]
    assert await link.call(SAVE_STATES, keys, *saves) == [2, b"9"]
    servers.answers[A] = [try_again(), [1], [], [1]]
    assert await link.call(EXPIRE_STATES, keys, 1000, 900) == [1, 3]


async def test_keys_that_a_script_needs_together_are_waited_for(
    servers: Servers, link: ClusterLink
) -> None:
    servers.answers[A] = [try_again(), try_again(), [b"ok"]]
    assert await link.call(REMEMBER, [LOW, "{b}:l"], "1", "1", "e") == [b"ok"]
    assert servers.calls == [(A, False, 2)] * 3


async def test_a_replica_that_took_over_counts_as_another_server(
    servers: Servers, link: ClusterLink, lost: list[int]
) -> None:
    await link.call(LOAD_STATES, [LOW], "1")
    servers.away, servers.slots = {A}, [(0, 8191, C), (8192, 16383, B)]
    assert await link.call(LOAD_STATES, [LOW], "1") == [str(C).encode()]
    assert lost == [1]


async def test_a_master_that_is_away_keeps_no_other_from_answering(
    servers: Servers, link: ClusterLink
) -> None:
    servers.away = {A}
    waiting = asyncio.create_task(link.call(LOAD_STATES, [LOW], "1"))
    for _ in range(3):
        assert await link.call(LOAD_STATES, [HIGH], "1") == [str(B).encode()]
    assert not waiting.done()
    servers.away = set()
    assert await waiting == [str(A).encode()]


async def test_a_refusal_is_not_definite_after_an_attempt_without_an_answer(
    servers: Servers, link: ClusterLink
) -> None:
    servers.answers[A] = [redis_errors.ConnectionError("lost"), OUT_OF_MEMORY]
    with pytest.raises(StoreUnavailable, match="maxmemory") as raised:
        await link.call(LOAD_STATES, [LOW], "1")
    assert not raised.value.definite
    servers.answers[A] = [OUT_OF_MEMORY]
    with pytest.raises(StoreUnavailable, match="maxmemory") as raised:
        await link.call(LOAD_STATES, [LOW], "1")
    assert raised.value.definite


async def test_a_call_ends_in_time_and_says_why(servers: Servers) -> None:
    slots = ClusterMap([A], servers.connect, "h", lambda n: f"{{{n}}}", timeout=60.0)
    await slots.refresh()
    link = ClusterLink(slots, RedisSession("a" * 10, "h"), timeout=0.05)
    link.open(fsync=False, replicas=0)
    servers.away = {A, B}
    with pytest.raises(StoreUnavailable, match="it does not respond"):
        await link.call(LOAD_STATES, [LOW], "1")
    await link.close()


async def test_a_question_for_the_map_whose_askers_gave_up_ends_without_an_error(
    servers: Servers,
) -> None:
    """Nobody would take it: it would be logged with a traceback."""
    slots = ClusterMap([A], servers.connect, "h", lambda n: f"{{{n}}}", timeout=60.0)
    servers.away = {A, B}
    asker = asyncio.create_task(slots.refresh())
    await asyncio.sleep(0)
    asker.cancel()
    await asyncio.wait([asker])
    question = slots._asking
    assert question is not None
    await question
    with pytest.raises(StoreUnavailable, match="h does not respond"):
        await slots.refresh()


async def test_each_master_has_a_key_of_the_store(servers: Servers) -> None:
    slots = ClusterMap([A], servers.connect, "h", lambda n: f"k:{{{n}}}", timeout=60.0)
    await slots.refresh()
    for master in (A, B):
        assert slots.owner(slot_of(slots.mark(master))) == master
    slots.move(slot_of(slots.mark(A)), B)
    assert slots.owner(slot_of(slots.mark(A))) == A


@pytest.mark.parametrize("in_flight", [64, 2048])
def test_saves_scale_with_the_masters(in_flight: int) -> None:
    """In virtual time, over masters that take a millisecond for each script."""
    single, _ = measured(1, in_flight, seconds=0.5)
    three, _ = measured(3, in_flight, seconds=0.5)
    assert three >= 2 * single
