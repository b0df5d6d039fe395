"""Laws: conditions that hold at the end of every test, for everything that the test has made.

A law takes one object and raises AssertionError. Each class of `LAWS` notes the objects that a test
makes, and the laws look at them once the test's function has passed, while its fixtures and its
loop still stand. So no test names the laws of its objects, and none calls `check` at its end.

    tests/unit, tests/explore, tests/loopback    `pytest_pyfunc_call`, in their conftest.py
    tests/loopback                               `left_over`, once all nodes have ended

A test that plants a fault, or puts an object into a state that it cannot reach, calls `forget`.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardbus import task_set
from shardbus.client.unknown_types import UnknownTypes
from shardbus.deliveries.durable_mailbox import DurableMailbox
from shardbus.deliveries.producer import Producer
from shardbus.deliveries.work_items import WorkItems
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.singleton.singleton import Singleton
from shardbus.projections.parts import ProjectedParts
from shardbus.reminders.schedule import ReminderSchedule
from shardbus.replication.proposer import Proposer
from shardbus.replication.quorum import Quorums
from shardbus.replication.registers import Registers
from shardbus.routing.instance_routes import Uncounted
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.router import Router
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.leases import Leases
from shardbus.sharding.region.region import ShardRegion
from shardbus.shells.cluster_thread import ClusterThread
from shardbus.shells.message_account import account_of
from shardbus.shells.region import RegionShell
from shardbus.store.group_commit import SaveGroup
from shardbus.store.load_group import READERS, LoadGroup
from shardbus.transport.full_entities import FullEntities
from shardbus.transport.held_entities import HeldEntities
from shardbus.transport.inbox import HELD_WEIGHT, Inbox
from shardbus.transport.machine_timer import MachineTimer
from shardbus.transport.name_lookups import NameLookups
from shardbus.transport.outbox import SessionOutbox
from shardbus.transport.session import Session
from shardbus.transport.window import Window

SOON_S = 0.1
"""A timer that fires sooner does not count: it keeps no memory for long."""
MACHINES = (
    ClusterMembership, Coordinator, DurableMailbox, FullEntities, HeldEntities, Leases, Ledger,
    NameLookups, Producer, ProjectedParts, Proposer, Quorums, Registers, ReminderSchedule,
    ShardRegion, Singleton, WorkItems,
)  # fmt: skip
"""They audit themselves."""

made: list[tuple[type, Any]] = []
"""The objects that the present test has made."""
fates: dict[PendingMessage, list[str]] = {}
"""The fates of each message without a route, in the present test."""


def forget() -> None:
    """Apply no law to the objects that the test has made so far."""
    made.clear()
    fates.clear()
    task_set._failed.clear()


# ---- transport


def ended_session(session: Any) -> None:
    """Nothing is left in a session that has ended."""
    if session.lost is None:
        return
    window, inbox, outbox, link = session.link.window, session.inbox, session.outbox, session.link
    held = [len(session._asks.entries), len(inbox._held), len(inbox._full.entities)]
    sent = [window.outstanding, window.unnumbered, window.in_flight, link.assembly._size]
    waiters = [*outbox._room_waiters, *link._open_waiters, *link._drain_waiters]
    assert (held, sent, waiters) == ([0, 0, 0], [0, 0, 0, 0], [])
    assert not window.holding, "an ended session holds arrivals back"


def window_bytes(window: Any) -> None:
    """A window counts the bytes that it has, and its batches have numbers in a row."""
    rows = [*window._unacked, *window._waiting]
    in_flight = sum(len(body) for _, body, _ in window._unacked)
    assert window.in_flight == in_flight
    assert window.outstanding == sum(len(body) for _, body, _ in rows)
    numbers = [number for number, _, _ in rows]
    assert numbers == [*range(window.last - len(rows) + 1, window.last + 1)]
    assert window.acked <= window.sent <= window.last
    assert window.unnumbered >= 0


def inbox_bytes(inbox: Any) -> None:
    """An inbox counts the bytes that it holds, and each pause ends once."""
    assert inbox._held_bytes == sum(held.size + HELD_WEIGHT for held in inbox._held)
    assert inbox._pauses >= 0


def open_batch(outbox: Any) -> None:
    """A batch that has a message has a weight, and leaves without a further call."""
    assert bool(outbox._weight) is bool(outbox.runs)
    assert not outbox.runs or outbox.scheduled


def set_timer(timer: Any) -> None:
    """A timer that was set once is set for each deadline, until it is stopped."""
    handle, owner = timer._handle, getattr(timer._tick, "__self__", None)
    if timer._stopped:
        assert handle is None
    elif timer._at and not isinstance(owner, ClusterThread):  # which runs in a thread of its own
        deadline = timer._deadline()
        assert deadline is None or (handle is not None and timer._at <= deadline)


# ---- routing and clients


def waiting_asks(router: Any) -> None:
    """An ask has a deadline while it waits, and each shard that messages wait for is noted."""
    if router.table is not router:
        return
    kept = [m for m in router.region.kept() if isinstance(m, PendingMessage)]
    noted = router._wanted_since
    assert all(m.shard in noted for m in kept if router.route(m.shard).out is None)
    assert all(router.route(shard).out is None for shard in noted)
    assert router.rows is None or not router.rows.homeless


def account(shell: Any) -> None:
    """Each message that a type on a node has accepted has one fate."""
    assert account_of(shell).missing == 0, account_of(shell)


def unknown_types(types: Any) -> None:
    """The messages for unknown types are counted, have deadlines, and their types are requested."""
    rows = [waiting for row in types._waiting.values() for waiting in row]
    size = sum(waiting.message.size for waiting in rows)
    assert (types.messages, types.bytes) == (len(rows), size)
    assert types._waiting.keys() <= types._described_at.keys()
    assert all(waiting.deadline >= types._earliest for waiting in rows)


def one_fate() -> None:
    """A message without a route waits, or it was sent, dropped or refused, and once."""
    tables = [router for _, router in made if isinstance(router, Router)]
    kept = {message for router in tables for message in router.region.kept()}
    for message, fate in fates.items():
        if message.waiter is None:
            assert len(fate) + (message in kept) == 1, f"a tell to {message.entity_id}: {fate}"
        elif message.decode is not None:
            known = fate or message in kept or message.waiter.done()
            assert known, f"an ask to {message.entity_id} is lost"
            assert len(fate) <= 1, f"an ask to {message.entity_id}: {fate}"


# ---- stores


def writers(group: Any) -> None:
    """A group of saves knows its batches in flight, and a save that waits has a writer."""
    in_flight = [entity for batch in group._writing for _, _, _, entity in batch]
    assert group._idle_writers + len(group._writing) == group._writers
    assert Counter(in_flight) == Counter(group._in_flight)
    assert group._outcomes.keys() <= group._in_flight
    waits = any(not answer.settled for _, answer, _, _ in group._waiting)
    assert not waits or group._writing or group._wakes


def readers(group: Any) -> None:
    """A group of loads knows its readers, and a load that waits has one."""
    assert group._idle_readers + len(group._tasks) == READERS
    waits = any(not answer.done() for _, answer, _ in group._waiting)
    assert not waits or group._idle_readers < READERS


LAWS: dict[type, tuple[Callable[[Any], None], ...]] = {
    **{cls: (lambda machine: machine.check(),) for cls in MACHINES},
    Session: (Session.check, ended_session),
    Window: (window_bytes,),
    Inbox: (inbox_bytes,),
    SessionOutbox: (open_batch,),
    MachineTimer: (set_timer,),
    Router: (waiting_asks,),
    RegionShell: (account,),
    UnknownTypes: (unknown_types,),
    SaveGroup: (writers,),
    LoadGroup: (readers,),
}


def apply() -> None:
    """Apply the laws to the objects of the test.

    Raises:
        AssertionError: one does not hold.
    """
    for cls, thing in made:
        for law in LAWS[cls]:
            try:
                law(thing)
            except Exception as error:
                raise AssertionError(f"{cls.__name__}: {error}. {law.__doc__}") from error
    one_fate()
    assert not any(task_set._failed.values()), "a background task has failed"


def left_over(loop: Any) -> list[str]:
    """Return the tasks and timers of nodes and clients on a loop, of which all have ended."""
    soon = loop.time() + SOON_S
    due = [h for h in loop._scheduled if not h.cancelled() and h.when() > soon]
    timers = [repr(handle) for handle in due if _is_ours(handle._callback)]
    return timers + [repr(task) for task in asyncio.all_tasks(loop) if "/shardbus/" in repr(task)]


def _is_ours(call: Any) -> bool:
    while isinstance(call, functools.partial):
        call = call.func
    return str(getattr(call, "__module__", "")).startswith("shardbus.")


# ---- noting


def _note(cls: Any) -> None:
    """Let each new object of a class be noted."""
    init = cls.__init__

    @functools.wraps(init)
    def noted(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        made.append((cls, self))

    cls.__init__ = noted


def _note_fates() -> None:
    """Let the fate of each message that has no route be noted. One of `all` that waits for the
    number of instances becomes several."""
    init, send = PendingMessage.__init__, PendingMessage.send
    dropped, deliver, uncounted = Router._dropped, Router.deliver, Uncounted.add

    def noted(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        if self.key is not None:
            fates[self] = []

    def sent(self: Any, out: Any, clock: Any) -> None:
        over = self.waiter is not None and self.decode is not None and self.waiter.done()
        send(self, out, clock)
        if not over and self in fates:
            fates[self].append("sent")

    def is_dropped(self: Any, pending: Any, reason: str) -> None:
        dropped(self, pending, reason)
        if pending in fates:
            fates[pending].append(reason)

    def delivered(self: Any, pending: Any) -> Any:
        try:
            return deliver(self, pending)
        except BaseException as error:
            if fates.get(pending) == []:
                fates[pending].append(type(error).__name__)
            raise

    def is_uncounted(self: Any, message: Any, call: Any) -> bool:
        waits = uncounted(self, message, call)
        if waits:
            fates.pop(message, None)
        return waits

    changed: Any = PendingMessage
    changed.__init__, changed.send = noted, sent
    changed = Router
    changed._dropped, changed.deliver = is_dropped, delivered
    changed = Uncounted
    changed.add = is_uncounted


for _cls in LAWS:
    _note(_cls)
_note_fates()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Apply the laws once the test's function has passed."""
    forget()
    try:
        result = yield
        apply()
        return result
    finally:
        forget()
