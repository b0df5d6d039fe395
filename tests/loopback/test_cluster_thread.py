"""Membership over real sockets: three cluster threads in one process, control messages looped
between them."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import zmq

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.errors import ConfigError
from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.member import Member, Status
from shardbus.membership.view import MembershipView
from shardbus.shells import cluster_thread
from shardbus.shells.cluster_thread import ClusterThread
from shardbus.shells.prober import Prober
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.name_resolver import NameResolver
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.transport.zmq.pubsub import OPTIONS
from shardbus.transport.zmq.reader import Reader
from shardbus.wire.gossip import decode, encode
from tests.ports import free_port
from tests.records import replace
from tests.unit.transport.session_pair import anyone
from tests.waiting import PATIENCE_S

"""Only a failing test waits so long."""


@dataclass
class Process:
    """The company of a cluster thread in its process: a ROUTER port and a store."""

    lab: Lab
    listener: socket.socket
    thread: ClusterThread = field(init=False)
    effects: list[object] = field(default_factory=list)

    @property
    def node(self) -> NodeId:
        return self.thread.me.node

    @property
    def view(self) -> MembershipView:
        return self.thread.view

    def notify(self, effect: cluster_thread.AppEffect) -> None:
        match effect:
            case ev.SendControl(to, message):
                address = to if isinstance(to, Address) else to.address
                target = self.lab.processes.get(address)
                if target is not None:
                    received = decode(encode(message))
                    target.thread.post(ev.ControlReceived(self.node, received))  # type: ignore[arg-type]
            case ev.AcquireLease(name, owner, _):
                holder = self.lab.leases.setdefault(name, owner)
                self.thread.post(ev.LeaseResult(name, holder == owner))
            case _:
                pass
        with self.lab.changed:
            self.effects.append(effect)
            self.lab.changed.notify_all()

    def crash(self) -> None:
        """Everything that the kernel would close, and nothing said."""
        self.listener.close()
        self.thread.stop()

    def stopped(self) -> str:
        return next((e.reason for e in self.effects if isinstance(e, ev.Stopped)), "")


class Lab:
    """Three processes in one, and a way to wait for them."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.changed = threading.Condition()
        self.processes: dict[Address, Process] = {}
        self.leases: dict[str, str] = {}

    def start(self, *seeds: Process, settings: ClusterSettings | None = None) -> Process:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        node = NodeId("127.0.0.1", port, random.getrandbits(64))
        process = Process(self, listener)
        process.thread = ClusterThread(
            Member(node, 0, roles=("test",)),
            "lab",
            settings or self.settings,
            {"shards": "100"},
            bind_host="127.0.0.1",
            notify=process.notify,
        )
        self.processes[node.address] = process
        process.thread.start()
        addresses = tuple(seed.node.address for seed in seeds)
        process.thread.post(ev.JoinSeeds(addresses) if seeds else ev.JoinSelf())
        return process

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while not condition():
                assert self.changed.wait(deadline - time.monotonic()), [
                    (p.view, p.effects[-5:]) for p in self.processes.values()
                ]

    def agree(self, *processes: Process) -> None:
        """Wait until each of these sees exactly these, all Up."""
        nodes = sorted(p.node for p in processes)
        self.wait(
            lambda: all(
                [m.node for m in p.view.members] == nodes
                and all(m.status is Status.UP for m in p.view.members)
                and not p.view.unreachable
                for p in processes
            )
        )

    def close(self) -> None:
        for process in self.processes.values():
            process.listener.close()
            assert process.thread.stop()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(ClusterSettings(coordinator_stall=0.0))

    class ProberOfLab(Prober):
        """The listener of a process says nothing; a real one would say which process it is."""

        async def probe(self, node: NodeId) -> ProbeOutcome:
            outcome = await super().probe(node)
            there = made.processes.get(node.address)
            if outcome is not ProbeOutcome.OPEN or there is None:
                return outcome
            return ProbeOutcome.ALIVE if there.node == node else ProbeOutcome.OTHER

    monkeypatch.setattr(cluster_thread, "Prober", ProberOfLab)
    yield made
    made.close()


def three(lab: Lab) -> tuple[Process, Process, Process]:
    first = lab.start()
    lab.agree(first)
    second = lab.start(first)
    lab.agree(first, second)
    third = lab.start(first, second)
    lab.agree(first, second, third)
    return first, second, third


def test_join_and_leave(lab: Lab) -> None:
    first, second, third = three(lab)
    assert [p.view.oldest() for p in (first, second, third)] == [first.view.member(first.node)] * 3
    first.thread.post(ev.Leave(first.node))
    lab.wait(lambda: first.stopped() == "left")
    lab.agree(second, third)
    assert second.view.oldest() == second.view.member(second.node)


def test_a_killed_process_is_removed_without_waiting(lab: Lab) -> None:
    first, second, third = three(lab)
    victim = min((first, second, third), key=lambda p: p.node)
    others = [p for p in (first, second, third) if p is not victim]
    assert others[0].view.leader == victim.node
    victim.crash()
    lab.agree(*others)
    assert others[0].view.leader == min(p.node for p in others)


def test_of_two_the_survivor_stays_by_the_lease(lab: Lab) -> None:
    first = lab.start()
    second = lab.start(first)
    lab.agree(first, second)
    first.crash()
    lab.agree(second)
    assert len(lab.leases) == 1


@pytest.mark.long
def test_a_new_process_at_the_old_address_replaces_the_old(lab: Lab) -> None:
    first, second, third = three(lab)
    member = third.thread.me
    third.thread.stop()
    third.listener.close()
    again = Process(lab, socket.create_server(third.node.address))
    again.thread = ClusterThread(
        replace(member, node=member.node._replace(uid=7)),
        "lab",
        lab.settings,
        {"shards": "100"},
        bind_host="127.0.0.1",
        notify=again.notify,
    )
    lab.processes[third.node.address] = again
    again.thread.start()
    assert again.thread.gossip_port == member.gossip_port
    again.thread.post(ev.JoinSeeds((first.node.address,)))
    lab.agree(first, second, again)


def test_a_stalled_application_takes_its_node_down(lab: Lab) -> None:
    first, second, _ = three(lab)
    hasty = replace(lab.settings, app_stall_timeout=0.5)
    stalled = lab.start(first, settings=hasty)
    lab.wait(lambda: stalled.stopped() == "downed")
    assert stalled.thread.lag >= 0.5
    stalled.crash()
    lab.wait(lambda: all(len(p.view.members) == 3 for p in (first, second)))


def test_a_stalled_application_makes_its_node_the_youngest(lab: Lab) -> None:
    """Nobody calls `app_alive` in this laboratory, so every application in it is stalled."""
    stalled = lab.start(settings=replace(lab.settings, coordinator_stall=0.5))
    lab.agree(stalled)
    second = lab.start(stalled)
    third = lab.start(stalled)

    def oldest(process: Process) -> NodeId | None:
        member = process.view.oldest()
        return member.node if member is not None else None

    others = (second.node, third.node)
    lab.wait(lambda: all(oldest(p) in others for p in (stalled, second, third)))


def test_without_downing_the_dead_stay_unreachable(lab: Lab) -> None:
    lab.settings = replace(lab.settings, downing=DowningSettings(strategy="none"))
    first, second, third = three(lab)
    third.crash()
    lab.wait(lambda: all(p.view.terminated == (third.node,) for p in (first, second)))
    assert len(first.view.members) == 3


def test_a_taken_port_is_named(lab: Lab) -> None:
    first = lab.start()
    port = first.thread.gossip_port
    rival = ClusterThread(
        Member(NodeId("127.0.0.1", 1, 1), port),
        "lab",
        lab.settings,
        {},
        bind_host="127.0.0.1",
        notify=lambda effect: None,
    )
    with pytest.raises(ConfigError, match=str(port)):
        rival.start()


def test_a_network_that_heals_waits_for_no_long_pause() -> None:
    """Nothing is heard of a peer before the next attempt to connect to it."""
    longest = OPTIONS[zmq.RECONNECT_IVL_MAX] / 1000
    assert longest <= ClusterSettings().failure_detector.heartbeat_interval


def test_a_failure_in_the_thread_is_reported(lab: Lab) -> None:
    first = lab.start()
    lab.agree(first)
    first.thread.post("nonsense")  # type: ignore[arg-type]
    lab.wait(lambda: "cluster thread failed" in first.stopped())


def make_prober() -> Prober:
    resolver = NameResolver()
    resolver.open(asyncio.get_running_loop())
    return Prober("test", 99, resolver)


async def test_probe_tells_refused_from_open() -> None:
    prober = make_prober()
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = NodeId("127.0.0.1", server.getsockname()[1], 1)
        assert await prober.probe(node) is ProbeOutcome.OPEN
    assert await prober.probe(node) is ProbeOutcome.REFUSED
    prober.close()


@pytest.mark.parametrize(("more", "outcome"), [(0, ProbeOutcome.REFUSED), (100, ProbeOutcome.OPEN)])
async def test_a_process_that_ends_while_it_is_probed_is_looked_at_again(
    more: int, outcome: ProbeOutcome
) -> None:
    """The system takes connections for a dying process until its sockets close. Something in
    between, which takes every connection and closes it, proves nothing."""
    left = more

    def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        if not left:
            server.close()
        left -= 1
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    prober = make_prober()
    assert await prober.probe(NodeId("127.0.0.1", server.sockets[0].getsockname()[1], 1)) is outcome
    server.close()
    await server.wait_closed()
    prober.close()


class Nobody:
    """Takes no messages."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"a probe is no message: {name}")


@pytest.mark.parametrize("cluster", ["test", "another"])
async def test_a_probe_tells_another_process_at_the_address(cluster: str) -> None:
    prober, port = make_prober(), free_port()
    here = NodeId("127.0.0.1", port, 7)
    endpoint = Endpoint(
        cluster,
        str(here),
        here.uid,
        Nobody(),  # type: ignore[arg-type]
        authorize=anyone,
        network=ZmqNetwork(),
        node=here,
    )
    endpoint.start("127.0.0.1", port)
    outcomes = [await prober.probe(NodeId(here.host, port, uid)) for uid in (7, 8)]
    assert outcomes == [ProbeOutcome.ALIVE, ProbeOutcome.OTHER]
    assert endpoint.sessions() == []
    endpoint.close()
    prober.close()


@pytest.mark.parametrize("answer", [[b""], [b"noise", b""], [b""] * 50], ids=len)
async def test_a_probe_is_not_misled_by_whoever_answers_what_is_no_frame(
    answer: list[bytes],
) -> None:
    failures: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, prober, port = context.socket(zmq.ROUTER), make_prober(), free_port()
    router.bind(f"tcp://127.0.0.1:{port}")
    reader = Reader(loop, router, lambda parts: router.send_multipart([parts[0], *answer]))
    reader.start()
    assert await prober.probe(NodeId("127.0.0.1", port, 7)) is ProbeOutcome.OPEN
    assert failures == []
    reader.close()
    prober.close()
    context.destroy(0)
