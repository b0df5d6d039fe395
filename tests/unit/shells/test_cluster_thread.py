"""The cluster thread without its thread: its handling of frames, and its watchdog."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.member import Member
from shardbus.membership.messages import Heartbeat
from shardbus.shells.cluster_thread import TICK, ClusterThread
from shardbus.wire.gossip import encode
from tests.records import replace

ME, PEER = NodeId("a", 1, 1), NodeId("b", 1, 2)
HEARTBEAT = encode(Heartbeat(1, 2.0))
SETTINGS = replace(ClusterSettings(), coordinator_stall=1.0, app_stall_timeout=3.0)


class World:
    """A cluster thread with a clock of the test and a machine that records events."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Any] = []
        self.stalls: list[float] = []
        self.thread = ClusterThread(
            Member(ME, 1),
            "lab",
            SETTINGS,
            {},
            bind_host="127.0.0.1",
            notify=lambda effect: None,
            stalled=self.stalls.append,
        )
        loop: Any = SimpleNamespace(time=lambda: self.now, call_at=lambda at, call: None)
        self.thread._started_loop = loop
        machine: Any = SimpleNamespace(
            handle=self._handle, deadline=lambda: None, overview=lambda now: None
        )
        self.thread._machine = machine
        self.thread._watchdog.due = self.now

    def _handle(self, event: Any, now: float) -> list[ev.Effect]:
        self.events.append(event)
        return []


@pytest.mark.parametrize(("late", "waited"), [(-0.1, 0.0), (0.0, 0.0), (2.5, 2.5)])
def test_a_frame_carries_the_time_by_which_this_thread_is_late(late: float, waited: float) -> None:
    """A frame that waited for a late thread does not say that its sender was late."""
    world = World()
    world.now += late
    world.thread.on_frames(str(PEER).encode(), HEARTBEAT)
    [event] = world.events
    assert (event.sender, event.message) == (PEER, Heartbeat(1, 2.0))
    assert event.waited == pytest.approx(waited)


@pytest.mark.parametrize(
    ("sender", "payload"),
    [
        (b"nobody", encode(Heartbeat(1, 2.0))),
        (b"\xff", encode(Heartbeat(1, 2.0))),
        (str(PEER).encode(), b""),
    ],
)
def test_a_malformed_frame_is_counted(sender: bytes, payload: bytes) -> None:
    world = World()
    world.thread.on_frames(sender, payload)
    assert world.events == []
    assert world.thread.dropped == {"malformed": 1}


def test_a_stalled_application_yields_its_coordinators_and_goes_down_once() -> None:
    world = World()
    for _ in range(round(4.0 / TICK) + 1):
        world.thread._watch()
    assert world.stalls[:3] == [0.0, TICK, 2 * TICK]
    yields = [event for event in world.events if isinstance(event, ev.YieldSeniority)]
    downs = [event for event in world.events if isinstance(event, ev.Down)]
    assert (len(yields), downs) == (4, [ev.Down(ME)])


def test_an_application_that_turns_is_never_stalled() -> None:
    world = World()
    for _ in range(100):
        world.thread.app_alive()
        world.thread._watch()
    assert world.events == []
    assert set(world.stalls) == {0.0}
    assert world.thread.lag == 0.0
