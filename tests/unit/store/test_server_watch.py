"""The watch over a store's server: calls at intervals, and problems that are logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.store.server_watch import PROBE_S, ServerWatch
from tests.virtual_time import virtual


class Server:
    """Counts the watch's questions. `up`: it answers; `problems`: the problems of its settings."""

    def __init__(self, check_every: float) -> None:
        self.probes = self.checks = 0
        self.up = True
        self.problems: tuple[str, ...] = ()
        self.watch = ServerWatch("store", self.probe, self.find_problems, check_every=check_every)

    async def probe(self) -> None:
        self.probes += 1
        if not self.up:
            raise StoreUnavailable("the server is away")

    async def find_problems(self) -> tuple[str, ...]:
        self.checks += 1
        return self.problems


@virtual
async def test_a_server_is_called_every_two_seconds_and_its_settings_are_checked_less_often():
    server = Server(check_every=5 * PROBE_S)
    server.watch.start()
    await asyncio.sleep(10.5 * PROBE_S)
    assert (server.probes, server.checks) == (10, 2)
    await server.watch.close()


@virtual
async def test_settings_that_are_checked_often_are_not_held_up_by_the_probe():
    server = Server(check_every=PROBE_S / 4)
    server.watch.start()
    await asyncio.sleep(1.1 * PROBE_S)
    assert server.checks == 4
    await server.watch.close()


@virtual
async def test_a_server_that_is_away_is_called_on_and_checked_once_it_is_back():
    server = Server(check_every=2 * PROBE_S)
    server.up = False
    server.watch.start()
    await asyncio.sleep(4.5 * PROBE_S)
    assert (server.probes, server.checks) == (4, 0)
    server.up = True
    await asyncio.sleep(PROBE_S)
    assert (server.probes, server.checks) == (5, 1)
    await server.watch.close()


@pytest.mark.parametrize("again", [False, True])
def test_it_runs_from_start_to_close(again: bool):
    @virtual
    async def run() -> None:
        server = Server(check_every=PROBE_S)
        assert not server.watch.running
        server.watch.start()
        if again:
            server.watch.start()
        assert server.watch.running
        await asyncio.sleep(1.5 * PROBE_S)
        assert server.probes == 1
        await server.watch.close()
        await server.watch.close()
        assert not server.watch.running
        await asyncio.sleep(5 * PROBE_S)
        assert server.probes == 1

    run()


def test_a_problem_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture):
    @virtual
    async def run() -> None:
        server = Server(check_every=PROBE_S)
        server.watch.start()
        server.problems = ("it may evict keys",)
        await asyncio.sleep(3.5 * PROBE_S)
        assert server.watch.problems == server.problems
        server.problems = ()
        await asyncio.sleep(2 * PROBE_S)
        assert server.watch.problems == ()
        await server.watch.close()

    with caplog.at_level(logging.INFO, "shardbus.store"):
        run()
    assert [record.getMessage() for record in caplog.records] == [
        "it may evict keys",
        "the settings of the store store are in order again",
    ]
