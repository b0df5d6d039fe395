"""Looks up host names for the connections and probes of one event loop.

`name_lookups` decides which look-ups run; this shell runs each in a thread of its own, hands the
machine its result, and calls those who wait. The threads are daemons: a look-up that never returns
holds up neither the loop nor the end of the process.

    watch      a connection's interest in a host: called back with every outcome
    resolve    one answer within a deadline, for a probe
    bindable   the address to listen on, while a node starts

Numeric hosts pass through at once, without a thread.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import assert_never

from shardbus.errors import ConfigError
from shardbus.transport.destination import is_numeric
from shardbus.transport.machine_timer import MachineTimer
from shardbus.transport.name_lookups import (
    Answered,
    KnownName,
    LookUp,
    LookUpEffect,
    LookUpEvent,
    LookUpFailed,
    NameLookups,
    ReportName,
    Settled,
    Wanted,
)

LookUpFunction = Callable[[str], tuple[str, ...]]
"""Returns the numeric addresses of a host name; blocks. Raises OSError if there are none."""
BIND_WITHIN_S = 5.0


def system_look_up(name: str) -> tuple[str, ...]:
    """Ask the system for the addresses of a name, in its order of preference.

    Raises:
        OSError: it has none.
    """
    # As bytes: Python's codec for international names would refuse long labels in its own way.
    places = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(place[0]) for *_, place in places))


class NameResolver:
    """The look-ups of one event loop."""

    def __init__(self, look_up: LookUpFunction = system_look_up) -> None:
        self._look_up = look_up
        self._names = NameLookups()
        self._timer = MachineTimer(self._names.deadline, self._tick)
        self._waiting: dict[str, dict[NameWatch, Callable[[], None]]] = {}
        """Those who wait for an outcome, by name."""
        self._loop: asyncio.AbstractEventLoop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call back in this loop."""
        self._loop = loop

    def watch(self, host: str, on_report: Callable[[], None]) -> NameWatch:
        """Return the interest of one connection in a host."""
        return NameWatch(self, host, on_report)

    async def resolve(self, host: str, within: float) -> KnownName:
        """Return the host's addresses: of a look-up, or if it takes longer than `within` seconds,
        the ones known before. Without any address, `reason` says why."""
        if is_numeric(host):
            return self.known_name(host)
        done = asyncio.Event()
        watch = self.watch(host, done.set)
        try:
            watch.renew()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await done.wait()
            return watch.known_name
        finally:
            watch.close()

    def known_name(self, host: str) -> KnownName:
        """Return the present knowledge of a host."""
        return KnownName((host,), True, "") if is_numeric(host) else self._names.known_name(host)

    def close(self) -> None:
        """Make no further call. Look-ups that run end by themselves, without an effect."""
        self._timer.stop()
        self._waiting.clear()

    def wait(self, watch: NameWatch, on_report: Callable[[], None], *, new_process: bool) -> None:
        """Look the name up, and call back with every outcome until `settle`."""
        self._waiting.setdefault(watch.host, {})[watch] = on_report
        self._handle(Wanted(watch.host, new_process))

    def settle(self, watch: NameWatch) -> None:
        """Make no further call to this watch."""
        waiting = self._waiting.get(watch.host)
        if waiting is not None and waiting.pop(watch, None) is not None and not waiting:
            del self._waiting[watch.host]
            self._handle(Settled(watch.host))

    def _handle(self, event: LookUpEvent) -> None:
        self._apply(self._names.handle(event, self._loop.time()))

    def _tick(self) -> None:
        self._apply(self._names.tick(self._loop.time()))

    def _apply(self, effects: list[LookUpEffect]) -> None:
        for effect in effects:
            match effect:
                case LookUp(name):
                    self._begin(name)
                case ReportName(name):
                    for on_report in self._waiting.get(name, {}).values():
                        self._loop.call_soon(on_report)
                case _:
                    assert_never(effect)
        self._timer.arm()

    def _begin(self, name: str) -> None:
        thread = threading.Thread(
            target=self._run, args=(name,), name=f"shardbus-look-up-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the process has no thread left
            self._loop.call_soon(self._handle, LookUpFailed(name, str(error)))

    def _run(self, name: str) -> None:
        """Look one name up; in a thread of its own."""
        outcome: LookUpEvent
        try:
            addresses = self._look_up(name)
            outcome = Answered(name, addresses) if addresses else LookUpFailed(name, "no address")
        except Exception as error:  # of any kind: the thread ends, and the name is free again
            outcome = LookUpFailed(name, getattr(error, "strerror", None) or str(error))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._handle, outcome)


class NameWatch:
    """The interest of one connection in a host. `on_report` is called in the loop after every
    outcome between `renew` and `settle`, never within one of these calls."""

    def __init__(self, resolver: NameResolver, host: str, on_report: Callable[[], None]) -> None:
        self.host = host
        self._resolver, self._on_report = resolver, on_report
        self._numeric, self._waits = is_numeric(host), False

    @property
    def known_name(self) -> KnownName:
        """The present knowledge of the host."""
        return self._resolver.known_name(self.host)

    def renew(self, *, new_process: bool = False) -> None:
        """The connection does not work: look the name up again. `new_process`: another process than
        before may have the name."""
        if not self._numeric:
            self._waits = True
            self._resolver.wait(self, self._report, new_process=new_process)

    def settle(self) -> None:
        """The connection works: look nothing up."""
        if self._waits:
            self._waits = False
            self._resolver.settle(self)

    def close(self) -> None:
        """The connection has ended."""
        self.settle()

    def _report(self) -> None:
        if self._waits:
            self._on_report()


def bindable(host: str, look_up: LookUpFunction = system_look_up) -> str:
    """Return the numeric address to bind for a host of this machine; of several, one of IPv4.
    Blocks for at most `BIND_WITHIN_S` seconds; called while a node starts.

    Raises:
        ConfigError: the name has no address, or there is no answer in time.
    """
    if is_numeric(host):
        return host
    answers: list[tuple[str, ...]] = []
    why: list[str] = []

    def run() -> None:
        try:
            answers.append(look_up(host))
        except OSError as error:
            why.append(str(error.strerror or error))

    thread = threading.Thread(target=run, name="shardbus-look-up-own", daemon=True)
    thread.start()
    thread.join(BIND_WITHIN_S)
    addresses = answers[0] if answers else ()
    if not addresses:
        reason = why[0] if why else f"no answer within {BIND_WITHIN_S:g} s"
        raise ConfigError(
            f"cannot look up the host {host}: {reason}",
            hint="set node.host to a numeric address of this machine",
        )
    return next((address for address in addresses if ":" not in address), addresses[0])
