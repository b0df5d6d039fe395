"""Look-ups in threads: callbacks in the loop, deadlines, and threads that never return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from shardbus.errors import ConfigError
from shardbus.transport import name_resolver
from shardbus.transport.name_lookups import LOOKUPS_MAX
from shardbus.transport.name_resolver import NameResolver, bindable, system_look_up
from tests.waiting import until

HANGS_S = 30.0
"""Ends a wait without a deadline; every wait here takes some milliseconds."""


class NameServer:
    """Answers look-ups as a test says. Names without an answer hang until `release`."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ...]] = {}
        self.look_ups: list[str] = []
        self.release = threading.Event()

    def look_up(self, name: str) -> tuple[str, ...]:
        self.look_ups.append(name)
        if name not in self.answers:
            self.release.wait()
        if not self.answers.get(name):
            raise OSError(-2, "Name or service not known")
        return self.answers[name]


@pytest.fixture
def server() -> NameServer:
    return NameServer()


@pytest.fixture
async def resolver(server: NameServer) -> AsyncIterator[NameResolver]:
    made = NameResolver(server.look_up)
    made.open(asyncio.get_running_loop())
    yield made
    made.close()
    server.release.set()


async def test_a_numeric_host_is_never_looked_up(
    resolver: NameResolver, server: NameServer
) -> None:
    for host in ("10.0.0.1", "::1"):
        async with asyncio.timeout(HANGS_S):
            addresses = await resolver.resolve(host, 10 * HANGS_S)
        assert (addresses.addresses, addresses.sure) == ((host,), True)
        resolver.watch(host, lambda: pytest.fail("reported")).renew(new_process=True)
    assert server.look_ups == []


async def test_a_connection_is_called_back_until_it_settles(
    resolver: NameResolver, server: NameServer
) -> None:
    server.answers["n1"] = ("10.0.0.1",)
    reports: list[tuple[str, ...]] = []
    watch = resolver.watch("n1", lambda: reports.append(watch.known_name.addresses))
    assert watch.known_name.addresses == ()
    watch.renew()
    await until(lambda: reports == [("10.0.0.1",)], "the answer")
    watch.settle()
    other = resolver.watch("n1", lambda: reports.append(("other",)))
    other.renew(new_process=True)
    await until(lambda: reports[1:] == [("other",)], "the second answer, for the other alone")
    assert len(server.look_ups) == 2


async def test_a_failed_look_up_is_repeated_until_it_answers(
    resolver: NameResolver, server: NameServer
) -> None:
    server.answers["n1"] = ()
    reports: list[str] = []
    watch = resolver.watch("n1", lambda: reports.append(watch.known_name.reason))
    watch.renew()
    await until(lambda: len(reports) >= 2, "two failures")
    server.answers["n1"] = ("10.0.0.1",)
    await until(lambda: watch.known_name.addresses == ("10.0.0.1",), "the answer")
    assert set(reports) <= {"Name or service not known", ""}


async def test_a_probe_gets_what_was_known_if_the_name_server_does_not_answer(
    resolver: NameResolver, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["n1"] = ("10.0.0.1",)
    assert (await resolver.resolve("n1", 10.0)).sure
    monkeypatch.setattr("shardbus.transport.name_lookups.FRESH_S", 0.0)
    monkeypatch.setattr("shardbus.transport.name_lookups.OVERDUE_S", 1e9)
    del server.answers["n1"]
    async with asyncio.timeout(HANGS_S):
        addresses = await resolver.resolve("n1", 0.01)
        assert (addresses.addresses, addresses.sure) == (("10.0.0.1",), True)
        assert (await resolver.resolve("n2", 0.01)).addresses == ()


async def test_a_name_server_that_never_answers_holds_a_bounded_number_of_threads(
    resolver: NameResolver, server: NameServer
) -> None:
    before = threading.active_count()
    waits = [resolver.resolve(f"n{n % 40}", 0.05) for n in range(200)]
    lookups = await asyncio.gather(*waits)
    assert {lookup.addresses for lookup in lookups} == {()}
    await until(lambda: len(server.look_ups) >= LOOKUPS_MAX, "as many threads as there may be")
    assert threading.active_count() - before <= LOOKUPS_MAX
    assert len(server.look_ups) == LOOKUPS_MAX
    assert all(
        thread.daemon
        for thread in threading.enumerate()
        if thread.name.startswith("shardbus-look-up")
    )


async def test_any_exception_frees_the_name(server: NameServer) -> None:
    def broken(name: str) -> tuple[str, ...]:
        raise ValueError("label too long")

    resolver = NameResolver(broken)
    resolver.open(asyncio.get_running_loop())
    addresses = await resolver.resolve("n1", 10.0)
    assert addresses.reason == "label too long"
    resolver.close()


async def test_after_close_no_report_arrives(resolver: NameResolver, server: NameServer) -> None:
    watch = resolver.watch("n1", lambda: pytest.fail("reported"))
    watch.renew()
    await until(lambda: server.look_ups == ["n1"], "the look-up")
    resolver.close()
    server.release.set()
    await until(
        lambda: not any(t.name == "shardbus-look-up-n1" for t in threading.enumerate()),
        "the end of the thread",
    )
    await asyncio.sleep(0)


def test_the_system_knows_this_machine() -> None:
    assert set(system_look_up("localhost")) <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match=r".+"):
        system_look_up("x" * 80)


def test_a_node_listens_on_a_numeric_address_of_its_host(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = {"n1": ("::1", "127.0.0.1"), "n6": ("::1",), "none": ()}
    assert bindable("0.0.0.0", server.look_up) == "0.0.0.0"
    assert bindable("n1", server.look_up) == "127.0.0.1"
    assert bindable("n6", server.look_up) == "::1"
    with pytest.raises(ConfigError, match="cannot look up the host none: Name or service not"):
        bindable("none", server.look_up)
    monkeypatch.setattr(name_resolver, "BIND_WITHIN_S", 0.01)
    with pytest.raises(ConfigError, match=r"cannot look up the host slow: no answer within 0.01 s"):
        bindable("slow", server.look_up)
    server.release.set()
