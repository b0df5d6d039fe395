"""Leaving, phase by phase, on a loop with virtual time: the wait of each phase, and for how
long at most."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ShutdownSettings
from shardbus.ids import NodeId
from shardbus.membership import events as cluster
from shardbus.membership.events import LEFT
from shardbus.node.shutdown import PART_FIRST_S, PART_S, POLL_S, leave, longest_move
from shardbus.node.shutdown_phases import HAND_OFF_MORE_S, LAST, LEAVE, PHASES, Phases
from tests.virtual_time import virtual

ME, OTHER, STRANGER = NodeId("a", 1, 1), NodeId("b", 1, 2), NodeId("c", 1, 3)
HANDOFF_S = 60.0


class Region:
    """A region of one shard. It hands off and stops when the test says so."""

    def __init__(self, node: Leaving) -> None:
        self._node, self.table = node, self
        self.settings = SimpleNamespace(handoff_timeout=HANDOFF_S)
        self.host = SimpleNamespace(shards={"1": None})
        self.router = SimpleNamespace(region=SimpleNamespace(buffered=[0], lacks_regions=False))
        loop = asyncio.get_running_loop()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.stopped_here: asyncio.Future[None] = loop.create_future()

    def shutdown(self) -> asyncio.Future[None]:
        self._node.log.append("hand off")
        return self.drained

    def give_up_undelivered(self) -> None:
        self._node.log.append("give up")
        self.router.region.buffered[0] = 0

    def stop_here(self) -> asyncio.Future[None]:
        self._node.log.append("stop here")
        return self.stopped_here


class Hosting(tuple[NodeId, ...]):
    """The members, all of which host shards."""

    def hosting(self) -> tuple[NodeId, ...]:
        return self


class Leaving:
    """A node that leaves. By default every wait ends at once; `log` has the actions."""

    def __init__(self) -> None:
        self.me, self.loop = ME, asyncio.get_running_loop()
        self.log: list[str] = []
        self.said: list[str] = []
        self.phases = Phases(ShutdownSettings())
        self.stopped: asyncio.Future[str] = self.loop.create_future()
        self.cluster_stops: asyncio.Future[None] = self.loop.create_future()
        self.membership = SimpleNamespace(
            stopped=self.stopped, cluster_stops=self.cluster_stops, post=self._post
        )
        self.members: Any = Hosting((ME, OTHER))
        self.region = Region(self)
        self.region.drained.set_result(None)
        self.regions = {"page": self.region}
        self.singleton = SimpleNamespace(ending=False)
        self.singletons = {"page": self.singleton}
        self.leaves_at_once = True
        self.sessions: list[Any] = []
        self.endpoint: Any = SimpleNamespace(
            clients=0,
            announce_leaving=lambda: self.log.append("announce"),
            sessions=lambda: self.sessions,
            clock=SimpleNamespace(tick=0),
        )
        self.drops: Any = SimpleNamespace(
            prompt=False, report=lambda tick, last: self.log.append("report")
        )
        self.records = SimpleNamespace(drops=self.drops)
        outbox = SimpleNamespace(flush=lambda: self.log.append("flush"))
        self.dispatcher: Any = SimpleNamespace(clients={STRANGER: SimpleNamespace(outbox=outbox)})
        for phase in PHASES:
            self.phases.add(phase, lambda phase=phase: self.log.append(phase))

    def _post(self, event: object) -> None:
        assert event == cluster.Leave(ME)
        self.log.append("leave")
        if self.leaves_at_once:
            self.stopped.set_result(LEFT)

    async def leave(self) -> bool:
        return await leave(self, self.said.append)  # type: ignore[arg-type]

    async def leaving(self) -> tuple[bool, float]:
        """Leave; return whether it went well, and the seconds that it took."""
        began = self.loop.time()
        done = await self.leave()
        return done, self.loop.time() - began


def about(seconds: float) -> Any:
    """That many seconds, and the turns of the loop that it takes to see it."""
    return pytest.approx(seconds, abs=3 * POLL_S)


@virtual
async def test_phases_run_in_order_with_the_nodes_own_work_in_two_of_them() -> None:
    node = Leaving()
    assert await node.leave()
    assert [entry for entry in node.log if entry in PHASES] == list(PHASES)
    work = [entry for entry in node.log if entry not in PHASES]
    part = ["report", "announce", "flush"]
    assert work == ["hand off", *part, "leave", *part]
    assert node.drops.prompt
    assert node.log.index("hand off") < node.log.index(LEAVE)
    assert node.said[-1].startswith(LAST)


@virtual
async def test_shards_that_are_not_handed_off_in_time_keep_the_node_from_leaving() -> None:
    """Other nodes may start the shards only once this process has ended."""
    node = Leaving()
    node.region.drained = node.loop.create_future()
    done, seconds = await node.leaving()
    assert (done, seconds) == (False, about(HANDOFF_S + HAND_OFF_MORE_S))
    assert "leave" not in node.log
    assert [entry for entry in node.log if entry in PHASES] == [
        phase for phase in PHASES if phase != LEAVE
    ]


@virtual
async def test_a_member_that_does_not_leave_in_time_has_not_left() -> None:
    node = Leaving()
    node.leaves_at_once = False
    done, seconds = await node.leaving()
    assert (done, seconds) == (False, about(node.phases.seconds(LEAVE, HANDOFF_S)))
    assert not node.stopped.cancelled(), "membership goes on"


@virtual
async def test_a_node_that_is_downed_waits_for_nothing() -> None:
    node = Leaving()
    node.region.drained = node.loop.create_future()
    node.loop.call_later(3.0, node.stopped.set_result, "downed")
    done, seconds = await node.leaving()
    assert (done, seconds) == (False, about(3.0))
    assert LAST not in node.log


@virtual
async def test_a_node_that_is_downed_while_it_leaves_parts_with_nobody() -> None:
    node = Leaving()
    node.leaves_at_once = False
    node.loop.call_later(1.0, node.stopped.set_result, "downed")
    assert not await node.leave()
    assert node.log[node.log.index("leave") :] == ["leave"]


# Messages under way


@virtual
async def test_messages_that_wait_for_a_home_keep_the_node_while_another_hosts() -> None:
    node = Leaving()
    node.region.router.region.buffered[0] = 1
    node.loop.call_later(2.0, node.region.router.region.buffered.__setitem__, 0, 0)
    assert await node.leaving() == (True, about(2.0))


@virtual
async def test_messages_that_no_other_node_can_take_keep_nobody() -> None:
    node = Leaving()
    node.region.router.region.buffered[0] = 1
    node.members = Hosting((ME,))
    assert await node.leaving() == (True, about(0.0))


@virtual
async def test_messages_without_a_home_keep_the_node_for_one_move_at_most() -> None:
    node = Leaving()
    node.region.router.region.buffered[0] = 1
    assert await node.leaving() == (True, about(HANDOFF_S + PART_FIRST_S))


@virtual
async def test_messages_keep_the_node_for_a_moment_while_no_region_may_take_shards() -> None:
    """As if all nodes leave at a time: each of them would wait for a home at the others."""
    node = Leaving()
    region = node.region.router.region
    region.buffered[0], region.lacks_regions = 1, True
    assert await node.leaving() == (True, about(PART_S + PART_FIRST_S))


@virtual
async def test_a_region_that_comes_meanwhile_takes_the_messages() -> None:
    node = Leaving()
    region = node.region.router.region
    region.buffered[0], region.lacks_regions = 1, True
    node.loop.call_later(4.0, setattr, region, "lacks_regions", False)
    node.loop.call_later(20.0, region.buffered.__setitem__, 0, 0)
    assert await node.leaving() == (True, about(20.0))


@virtual
async def test_reports_of_messages_that_found_no_home_are_waited_for() -> None:
    """The socket of a session may have no room for the report yet."""
    node = Leaving()
    node.members = Hosting((ME,))
    node.region.router.region.buffered = [1]
    session = SimpleNamespace(lost=None, tag=ME, busy=False)

    def flush() -> None:
        session.busy = True
        node.loop.call_later(0.5, setattr, session, "busy", False)

    session.outbox = SimpleNamespace(flush=flush)
    node.sessions = [session]
    done, seconds = await node.leaving()
    assert (done, seconds) == (True, about(0.5))
    assert node.log.index("leave") < node.log.index("give up") < len(node.log) - 1
    assert "report" in node.log[node.log.index("give up") :]


@virtual
async def test_clients_leave_first_while_a_member_can_answer_them() -> None:
    node = Leaving()
    node.endpoint.clients = 1
    node.loop.call_later(0.5, setattr, node.endpoint, "clients", 0)
    assert await node.leaving() == (True, about(0.5))
    assert node.log.index("announce") < node.log.index("leave")


@virtual
async def test_what_clients_sent_last_gets_a_home_while_a_member_can_ask_for_it() -> None:
    """A client ends its session once everything is acknowledged, and would get no report later."""
    node = Leaving()
    node.endpoint.clients = 1
    buffered = node.region.router.region.buffered
    node.loop.call_later(0.1, buffered.__setitem__, 0, 1)
    node.loop.call_later(0.2, setattr, node.endpoint, "clients", 0)
    node.loop.call_later(0.5, buffered.__setitem__, 0, 0)
    assert await node.leaving() == (True, about(0.5))
    assert "give up" not in node.log


@virtual
async def test_clients_that_stay_keep_the_node_for_a_bounded_time() -> None:
    node = Leaving()
    node.endpoint.clients = 1
    assert await node.leaving() == (True, about(PART_FIRST_S + PART_S))


@virtual
async def test_clients_of_the_only_host_leave_after_the_member() -> None:
    """Without another host no home can be found for their messages."""
    node = Leaving()
    node.members = Hosting((ME,))
    assert await node.leave()
    work = [entry for entry in node.log if entry not in PHASES]
    assert work == ["hand off", "leave", "report", "announce", "flush"]


@virtual
async def test_clients_that_stay_keep_the_only_host_for_a_second_only() -> None:
    """As long as a client has no other way, it does not leave."""
    node = Leaving()
    node.members = Hosting((ME,))
    node.endpoint.clients = 1
    assert await node.leaving() == (True, about(PART_FIRST_S))


def session(tag: NodeId, *, lost: bool = False, busy: bool = True) -> Any:
    error = RuntimeError("lost") if lost else None
    return SimpleNamespace(tag=tag, lost=error, busy=busy)


@pytest.mark.parametrize(
    ("tag", "lost", "busy", "waits"),
    [
        (OTHER, False, False, False),
        (OTHER, False, True, True),
        (OTHER, True, True, False),
        (STRANGER, False, True, False),
    ],
)
@virtual
async def test_members_that_have_not_acknowledged_or_answered_are_waited_for(
    tag: NodeId, lost: bool, busy: bool, waits: bool
) -> None:
    node = Leaving()
    node.sessions = [session(tag, lost=lost, busy=busy)]
    assert await node.leaving() == (True, about(PART_S if waits else 0.0))


@virtual
async def test_a_successor_that_takes_over_is_waited_for() -> None:
    node = Leaving()
    node.singleton.ending = True
    node.loop.call_later(2.0, setattr, node.singleton, "ending", False)
    assert await node.leaving() == (True, about(2.0))


# The whole cluster stops


@virtual
async def test_shards_end_here_if_the_whole_cluster_stops() -> None:
    node = Leaving()
    node.cluster_stops.set_result(None)
    node.region.stopped_here.set_result(None)
    assert await node.leave()
    work = [entry for entry in node.log if entry not in PHASES]
    assert work == ["stop here", "leave", "report", "announce", "flush"]


@virtual
async def test_clients_that_stay_keep_a_cluster_that_stops_for_a_second_only() -> None:
    """Such as one that ended while it connected, which this node cannot know."""
    node = Leaving()
    node.cluster_stops.set_result(None)
    node.region.stopped_here.set_result(None)
    node.endpoint.clients = 1
    assert await node.leaving() == (True, about(PART_FIRST_S))


@virtual
async def test_handing_off_becomes_stopping_if_the_cluster_stops_meanwhile() -> None:
    node = Leaving()
    node.region.drained = node.loop.create_future()
    node.loop.call_later(1.0, node.cluster_stops.set_result, None)
    node.loop.call_later(3.0, node.region.stopped_here.set_result, None)
    assert await node.leaving() == (True, about(3.0))
    assert node.log.index("hand off") < node.log.index("stop here") < node.log.index("leave")


@virtual
async def test_the_longest_move_is_that_of_the_slowest_type() -> None:
    node = Leaving()
    other: Any = Region(node)
    other.settings.handoff_timeout = 90.0
    node.regions = {"page": node.region, "cart": other}
    assert longest_move(node) == 90.0  # type: ignore[arg-type]
    node.regions = {}
    assert longest_move(node) == 0.0  # type: ignore[arg-type]
