"""The shell of leases on virtual time: slow, failing and late answers of the store,
and of leases when the owner ends or its timers stood still."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.errors import StoreUnavailable
from shardbus.sharding.events import Note
from shardbus.sharding.leases import GUARD, RENEW
from shardbus.shells.leases import END_S, LeaseShell
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import Lease
from tests.virtual_time import virtual

TTL, RETRY = 8.0, 1.0
NAME = "shard/page/1"
RENEWAL_S = TTL * RENEW


class Store(MemoryStore):
    """A store whose calls fail or hang as the test says. `calls` has their names."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data, clock=asyncio.get_running_loop().time)
        self.calls: list[str] = []
        self.trouble: Callable[[], Awaitable[None]] | None = None

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        await self._call("acquire")
        return await super().acquire_lease(name, owner, ttl)

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        await self._call("renew")
        return await super().renew_lease(lease, ttl)

    async def release_lease(self, lease: Lease) -> None:
        await self._call("release")
        await super().release_lease(lease)

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.trouble is not None:
            await self.trouble()


class Owner:
    """A holder of leases, its shell and its store. `log` has its events, with the time."""

    def __init__(self, data: MemoryData | None = None, name: str = "a") -> None:
        self.loop = asyncio.get_running_loop()
        self.data = data if data is not None else MemoryData()
        self.store = Store(self.data)
        self.store._open = True
        self.log: list[tuple[float, str]] = []
        settings = ShardingSettings(use_lease="shards", lease_ttl=TTL, lease_retry_interval=RETRY)
        self.shell = LeaseShell(self.store, name, settings, self)
        self.shell.clock = self.loop.time
        self.dropped_at_once = False

    def on_held(self, name: str) -> None:
        self._write(f"held {name}")

    def on_lost(self, name: str, left: float) -> None:
        self._write(f"lost {name}, {left:.1f} s left")
        if self.dropped_at_once:
            self.shell.drop(name)

    def on_free(self, name: str) -> None:
        self._write(f"free {name}")

    def on_note(self, note: Note) -> None:
        self._write(note.kind)

    def _write(self, text: str) -> None:
        self.log.append((round(self.loop.time(), 1), text))

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.log]


async def unavailable() -> None:
    raise StoreUnavailable("no answer")


async def defect() -> None:
    raise ZeroDivisionError("a defect")


async def hang() -> None:
    await asyncio.Event().wait()


@virtual
async def test_a_lease_is_held_from_the_answer_and_kept_until_it_is_dropped() -> None:
    owner = Owner()
    owner.shell.want(NAME)
    assert not owner.shell.holds(NAME)
    await asyncio.sleep(10 * TTL)
    assert owner.texts == [f"held {NAME}"]
    assert owner.shell.holds(NAME)
    assert owner.store.calls.count("renew") >= 10 * TTL / RENEWAL_S - 1
    owner.shell.drop(NAME)
    assert not owner.shell.holds(NAME)
    await asyncio.sleep(0.1)
    assert owner.texts == [f"held {NAME}", f"free {NAME}"]
    assert await owner.store.acquire_lease(NAME, "b", TTL) is not None, "another may have it"


@virtual
async def test_a_lease_of_another_is_asked_for_again_and_noted_once() -> None:
    owner, other = Owner(), "b"
    taken = await owner.store.acquire_lease(NAME, other, 1000.0)
    assert taken is not None
    owner.store.calls.clear()
    owner.shell.want(NAME)
    await asyncio.sleep(5.5 * RETRY)
    assert owner.texts == ["lease_refused"]
    assert owner.store.calls == ["acquire"] * 6
    await owner.store.release_lease(taken)
    await asyncio.sleep(RETRY)
    assert owner.texts == ["lease_refused", f"held {NAME}"]


@pytest.mark.parametrize("trouble", [unavailable, hang])
@virtual
async def test_a_store_that_does_not_answer_is_asked_again(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    owner = Owner()
    owner.store.trouble = trouble
    owner.shell.want(NAME)
    await asyncio.sleep(2 * (RENEWAL_S + RETRY))
    assert owner.texts == []
    assert len(owner.store.calls) >= 2
    owner.store.trouble = None
    await asyncio.sleep(RENEWAL_S + RETRY)
    assert owner.texts == [f"held {NAME}"]


@pytest.mark.parametrize("trouble", [unavailable, hang])
@virtual
async def test_a_lease_that_is_not_confirmed_is_lost_with_time_to_stop(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    owner.store.trouble = trouble
    await asyncio.sleep(TTL)
    held, noted, lost = owner.log
    assert (held[1], noted[1]) == (f"held {NAME}", "lease_lost")
    assert lost[1] == f"lost {NAME}, {TTL * GUARD:.1f} s left"
    assert lost[0] == pytest.approx(TTL * (1 - GUARD), abs=0.2)


@virtual
async def test_one_renewal_that_fails_loses_nothing() -> None:
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    owner.store.trouble = unavailable
    await asyncio.sleep(RENEWAL_S)
    owner.store.trouble = None
    await asyncio.sleep(10 * TTL)
    assert owner.texts == [f"held {NAME}"]


@virtual
async def test_a_lease_that_the_store_gave_to_another_is_lost_at_once() -> None:
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    owner.data.leases[NAME].owner = "b"
    await asyncio.sleep(RENEWAL_S)
    assert owner.texts == [f"held {NAME}", "lease_lost", f"lost {NAME}, 0.0 s left"]


@virtual
async def test_a_defect_of_the_store_is_logged_and_the_lease_is_tried_again() -> None:
    owner = Owner()
    owner.store.trouble = defect
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("shardbus.leases")
    log.addHandler(handler)
    try:
        owner.shell.want(NAME)
        await asyncio.sleep(1.5 * RETRY)
        assert [record.getMessage() for record in records] == [
            f"the lease {NAME!r} was not acquired"
        ] * 2
        owner.store.trouble = None
        await asyncio.sleep(RETRY)
        assert owner.texts == [f"held {NAME}"]
        owner.store.trouble = defect
        await asyncio.sleep(TTL)
        assert records[-1].getMessage() == f"the lease {NAME!r} was not renewed"
        assert owner.texts[-1].startswith(f"lost {NAME}")
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("trouble", [unavailable, hang])
@virtual
async def test_a_lease_that_cannot_be_released_is_free_here_and_expires_by_itself(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    owner.store.trouble = trouble
    owner.shell.drop(NAME)
    await asyncio.sleep(RENEWAL_S + 0.5)
    assert owner.texts == [f"held {NAME}", "lease_kept", f"free {NAME}"]


@virtual
async def test_an_answer_after_the_drop_gives_the_lease_back() -> None:
    owner = Owner()
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    owner.store.trouble = slow
    owner.shell.want(NAME)
    await asyncio.sleep(0.1)
    owner.shell.drop(NAME)
    assert owner.texts == [f"free {NAME}"]
    gate.set()
    await asyncio.sleep(0.1)
    assert owner.store.calls == ["acquire", "release"]
    assert owner.texts == [f"free {NAME}"]
    assert owner.data.leases[NAME].owner is None


@virtual
async def test_a_check_gives_up_a_lease_whose_timer_has_not_fired() -> None:
    """After a pause a message may be handled before the timer."""
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    now = owner.loop.time()
    owner.shell.check()
    assert owner.texts == [f"held {NAME}"]
    owner.shell.clock = lambda: now + TTL
    owner.shell.check()
    assert owner.texts == [f"held {NAME}", "lease_lost", f"lost {NAME}, 0.0 s left"]


@virtual
async def test_an_owner_that_ends_releases_every_lease() -> None:
    owner = Owner()
    names = [f"shard/page/{n}" for n in range(20)]
    for name in names:
        owner.shell.want(name)
    await asyncio.sleep(0.5)
    await owner.shell.end()
    assert {owner.data.leases[name].owner for name in names} == {None}
    calls = len(owner.store.calls)
    owner.shell.want(NAME)
    await asyncio.sleep(10 * TTL)
    assert len(owner.store.calls) == calls, "no timer goes on, and none is set"


@virtual
async def test_an_owner_that_ends_does_not_wait_for_a_silent_store() -> None:
    owner = Owner()
    owner.shell.want(NAME)
    await asyncio.sleep(0.5)
    owner.store.trouble = hang
    began = owner.loop.time()
    await owner.shell.end()
    assert owner.loop.time() - began == pytest.approx(END_S, abs=0.1)


@virtual
async def test_two_owners_never_hold_one_lease() -> None:
    """The store stops answering to the first owner; the second gets the lease after its end."""
    data = MemoryData()
    first, second = Owner(data), Owner(data, "b")
    first.dropped_at_once = True
    first.shell.want(NAME)
    await asyncio.sleep(0.5)
    second.shell.want(NAME)
    first.store.trouble = hang
    while not second.shell.holds(NAME):
        await asyncio.sleep(0.05)
        assert not (first.shell.holds(NAME) and second.shell.holds(NAME))
    (lost,) = [at for at, text in first.log if text.startswith("lost")]
    (held,) = [at for at, text in second.log if text.startswith("held")]
    assert lost + TTL * GUARD <= held
