"""Reading by a descriptor: nothing is left lying, nobody is starved, and the watchdog finds
messages without an edge."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest
import zmq

from shardbus.transport.zmq import reader as module
from shardbus.transport.zmq.reader import TURN_MAX, Reader
from shardbus.transport.zmq.sockets import bind_router, connect_dealer
from tests.ports import free_port
from tests.waiting import until

Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    context.destroy(0)


class Ends:
    """A ROUTER with a reader, and DEALERs that write to it."""

    def __init__(self, context: zmq.Context[Socket]) -> None:
        self.context, self.port = context, free_port()
        self.router = bind_router(context, "127.0.0.1", self.port, b"n1")
        self.got: list[bytes] = []
        self.missed = 0
        loop = asyncio.get_running_loop()
        self.reader = Reader(loop, self.router, self._take, self._miss)
        self.reader.start()

    def dealer(self) -> Socket:
        return connect_dealer(self.context, "127.0.0.1", self.port)

    def _take(self, parts: list[bytes]) -> None:
        self.got.append(parts[-1])

    def _miss(self) -> None:
        self.missed += 1

    def arrived(self) -> bool:
        """Ask the socket, behind the reader's back; that swallows the edge."""
        return bool(int(self.router.get(zmq.EVENTS)) & zmq.POLLIN)


@pytest.fixture
async def ends(context: zmq.Context[Socket]) -> Ends:
    return Ends(context)


async def test_a_missed_edge_is_found_by_the_watchdog_and_counted(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHDOG_S", 0.05)
    dealer = ends.dealer()
    dealer.send(b"first")
    await until(lambda: ends.got == [b"first"], "the first")
    ends.reader._watchdog.cancel()  # type: ignore[union-attr]
    ends.reader._watch()  # from now on, more often
    before = ends.missed
    dealer.send(b"second")
    while not ends.arrived():
        pass  # the loop must not turn meanwhile
    assert ends.got == [b"first"]
    await until(lambda: len(ends.got) == 2, "the second")
    assert ends.missed == before + 1


async def test_a_send_checks_for_messages_that_arrived_meanwhile(ends: Ends) -> None:
    """Without the watchdog, which would look as well."""
    dealer = ends.dealer()
    dealer.send(b"first")
    await until(lambda: ends.got, "the first")
    ends.reader._watchdog.cancel()  # type: ignore[union-attr]
    dealer.send(b"second")
    while not ends.arrived():
        pass
    ends.reader.used()
    await until(lambda: len(ends.got) == 2, "the second")
    assert ends.missed == 0


async def test_a_drain_checks_the_socket_before_it_ends(
    ends: Ends,
) -> None:
    """A message that comes while another is handled is read in the same go, without the watchdog
    and without an edge."""
    dealer = ends.dealer()
    dealer.send(b"first")
    await until(lambda: ends.got, "the first")
    ends.reader._watchdog.cancel()  # type: ignore[union-attr]
    turns = list[bytes]()

    def answer(parts: list[bytes]) -> None:
        ends.got.append(parts[-1])
        if parts[-1] == b"second":
            dealer.send(b"third")
            while not ends.arrived():
                pass
            ends.reader.used()
            asyncio.get_running_loop().call_soon(lambda: turns.extend(ends.got))

    ends.reader._on_message = answer
    dealer.send(b"second")
    await until(lambda: turns, "a turn after the second")
    assert turns == [b"first", b"second", b"third"]


async def test_a_wake_up_without_a_message_does_not_stop_reading(ends: Ends) -> None:
    dealer = ends.dealer()
    dealer.send(b"first")
    await until(lambda: ends.got, "the first")
    ends.reader._watchdog.cancel()  # type: ignore[union-attr]
    assert ends.reader._drain() == 0
    dealer.send(b"second")
    await until(lambda: len(ends.got) == 2, "the second")
    assert ends.missed == 0


async def test_a_turn_takes_a_bounded_number_and_the_rest_comes_by_itself(ends: Ends) -> None:
    dealer = ends.dealer()
    count = 10 * TURN_MAX
    lengths: list[int] = []

    def look() -> None:
        lengths.append(len(ends.got))
        if len(ends.got) < count:
            asyncio.get_running_loop().call_soon(look)

    for n in range(count):
        dealer.send(b"%d" % n)
    look()
    await until(lambda: len(ends.got) == count, "all")
    assert ends.got == [b"%d" % n for n in range(count)]
    steps = [b - a for a, b in pairwise(lengths)]
    assert max(steps) <= 2 * TURN_MAX  # by the edge, and by the turn that was due


async def test_a_message_may_end_the_turn(ends: Ends) -> None:
    """The loop's other work comes before the next message."""
    lengths: list[int] = []

    def take(parts: list[bytes]) -> None:
        ends.got.append(parts[-1])
        ends.reader.end_turn()
        asyncio.get_running_loop().call_soon(lambda: lengths.append(len(ends.got)))

    ends.reader._on_message = take
    dealer = ends.dealer()
    for n in range(TURN_MAX):
        dealer.send(b"%d" % n)
    await until(lambda: len(lengths) == TURN_MAX, "all")
    assert ends.got == [b"%d" % n for n in range(TURN_MAX)]
    # Two in a turn: by the edge, and by the turn that was due.
    assert all(seen <= n + 2 for n, seen in enumerate(lengths))


async def test_a_peer_that_floods_does_not_starve_another(ends: Ends) -> None:
    """One always has a message; the other's messages are read in turn with them."""
    flooding, modest = ends.dealer(), ends.dealer()
    for dealer in (flooding, modest):
        dealer.send(b"hello")
    await until(lambda: len(ends.got) == 2, "both")
    take = ends.reader._on_message

    def refill(parts: list[bytes]) -> None:
        take(parts)
        if parts[-1] == b"flood" and len(ends.got) < 200_000:
            flooding.send(b"flood")

    ends.reader._on_message = refill
    for _ in range(1000):
        flooding.send(b"flood")
    await until(lambda: len(ends.got) > 2000, "the flood")
    for _ in range(10):
        modest.send(b"modest")
    await until(lambda: ends.got.count(b"modest") == 10, "what the modest one sent")
    assert len(ends.got) < 200_000
    first = ends.got.index(b"modest")
    last = len(ends.got) - 1 - ends.got[::-1].index(b"modest")
    assert last - first < 20_000


async def test_a_reader_that_was_closed_reads_nothing(ends: Ends) -> None:
    dealer = ends.dealer()
    dealer.send(b"first")
    await until(lambda: ends.got, "the first")
    ends.reader.close()
    ends.reader.close()
    dealer.send(b"second")
    while not ends.arrived():
        pass
    ends.reader.read_soon()
    ends.reader.used()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ends.got == [b"first"]


async def test_a_loop_that_goes_on_in_a_child_of_a_fork_reads_nothing_of_the_parents(
    ends: Ends,
) -> None:
    dealer = ends.dealer()
    dealer.send(b"first")
    while not ends.arrived():
        pass
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(ends.reader._drain())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ends.reader.read_soon()
    await until(lambda: ends.got == [b"first"], "what the child has left alone")
