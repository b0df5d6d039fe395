"""The shell of a singleton: the machine's effects, with and without a lease."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings, SingletonSettings
from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton import messages as msg
from shardbus.membership.singleton.singleton import SingletonState
from shardbus.membership.view import MembershipView
from shardbus.sharding import events
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.type_members import TypeMembers
from tests import laws
from tests.records import replace

ME, OTHER = NodeId("a", 1, 1), NodeId("b", 1, 2)
LEASE = "singleton/t"


class Recorder:
    """Stands for the coordinator's shell and for the lease's: notes the calls of each."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> None:
            self._log.append(" ".join([name, *map(str, arguments)]))

        return call


class World:
    """One singleton whose machine does as the test says."""

    def __init__(self, *, leased: bool) -> None:
        self.log: list[str] = []
        self.events: list[msg.Event] = []
        settings = ShardingSettings(use_lease="singleton" if leased else "none")
        region: Any = SimpleNamespace(name="t", coordinator_role="", settings=settings)
        node: Any = SimpleNamespace(me=ME, store=None, states=None, note=lambda *_: None)
        make: Any = None
        self.shell = SingletonShell(region, make, node, 0.0, SingletonSettings())
        recorder: Any = Recorder(self.log)
        self.shell.coordinator = recorder
        if leased:
            self.shell._leases = recorder
        machine: Any = SimpleNamespace(handle=self._handle)
        self.shell.singleton = machine

    def _handle(self, event: msg.Event, now: float) -> list[msg.Effect]:
        self.events.append(event)
        return []

    def step(self, step: str) -> None:
        effects: dict[str, msg.Effect] = {
            "prepare": msg.PrepareInstance(),
            "start": msg.StartInstance(7),
            "retire": msg.RetireInstance(),
            "halt": msg.HaltInstance(),
        }
        if step in effects:
            self.shell._perform([effects[step]])
        elif step == "held":
            self.shell.on_held(LEASE)
        elif step == "lost":
            self.shell.on_lost(LEASE, 1.0)
        elif step == "free":
            self.shell.on_free(LEASE)
        else:
            assert step == "ended"
            self.shell.ended("t")


async def test_S2_76_calls_of_the_store_have_the_timeout_of_the_types_settings() -> None:
    settings = ShardingSettings(updating_state_timeout=7.5)
    region: Any = SimpleNamespace(name="t", coordinator_role="", settings=settings)
    node: Any = SimpleNamespace(me=ME, store=None, states=None, note=lambda *_: None)
    make: Any = None
    shell = SingletonShell(region, make, node, 0.0, SingletonSettings())
    assert shell.coordinator._store_timeout == 7.5


ENDING = (SingletonState.WAS_OLDEST, SingletonState.HANDING_OVER)


@pytest.mark.parametrize("state", SingletonState, ids=lambda state: state.name.lower())
async def test_a_coordinator_rules_as_the_oldest_and_keeps_its_node_while_it_ends(
    state: SingletonState,
) -> None:
    region: Any = SimpleNamespace(name="t", coordinator_role="", settings=ShardingSettings())
    node: Any = SimpleNamespace(me=ME, store=None, states=None, note=lambda *_: None)
    make: Any = None
    shell = SingletonShell(region, make, node, 0.0, SingletonSettings())
    shell.singleton.state = state
    assert shell.ending is (state in ENDING)
    assert shell.rules is (state is SingletonState.OLDEST)
    laws.forget()


STOPPED = msg.InstanceStopped()


@pytest.mark.parametrize(
    ("leased", "steps", "calls", "reports"),
    [
        (False, "prepare start", "prepare, begin 7", 0),
        (False, "start halt", "begin 7, stop", 0),
        (False, "start ended", "begin 7", 1),
        (True, "start", "want L", 0),
        (True, "start held", "want L, begin 7", 0),
        (True, "start halt held", "want L, stop, drop L", 0),
        (True, "start held halt", "want L, begin 7, stop, drop L", 0),
        (True, "start held halt free", "want L, begin 7, stop, drop L", 0),
        (True, "start retire held", "want L, retire", 0),
        (True, "start held ended", "want L, begin 7, drop L", 0),
        (True, "start held ended free", "want L, begin 7, drop L", 1),
        (True, "start held lost", "want L, begin 7, stop, drop L", 0),
        (True, "start held lost free", "want L, begin 7, stop, drop L", 1),
        (True, "start held lost free free", "want L, begin 7, stop, drop L", 1),
        (True, "start held ended free start held", "want L, begin 7, drop L, want L, begin 7", 1),
    ],
)  # fmt: skip
async def test_the_coordinator_runs_under_the_lease_and_ends_with_its_release(
    leased: bool, steps: str, calls: str, reports: int
) -> None:
    world = World(leased=leased)
    for step in steps.split():
        world.step(step)
    assert [call.replace(LEASE, "L") for call in world.log] == calls.split(", ")
    assert world.events == [STOPPED] * reports


async def test_a_node_that_ends_begins_no_coordinator_when_the_others_leave() -> None:
    region: Any = SeenRegion()
    region.settings, region.coordinator_role = ShardingSettings(), ""
    node: Any = SimpleNamespace(me=ME, store=None, states=None, note=lambda *_: None)
    make: Any = None
    mine = Member(ME, 7356, status=Status.UP, up_number=2)
    older = replace(mine, node=OTHER, up_number=1)
    for closed in (False, True):
        shell = SingletonShell(region, make, node, 0.0, SingletonSettings())
        calls: list[str] = []
        shell.coordinator = Recorder(calls)  # type: ignore[assignment]
        shell.update(TypeMembers(MembershipView(me=ME, members=(mine, older))))
        if closed:
            shell.close()
        calls.clear()
        shell.update(TypeMembers(MembershipView(me=ME, members=(mine,))))
        begun = [call for call in calls if not call.startswith("update")]
        assert bool(begun) is not closed, calls
        shell.close()


async def test_a_note_of_the_lease_and_a_hand_over_reach_the_machine() -> None:
    world = World(leased=True)
    message = msg.HandOverToMe(3)
    world.shell.received(ME, message)
    world.shell.on_membership_ended(gracefully=True)
    assert world.events == [msg.HandOverReceived(ME, message), msg.MembershipEnded(True)]


class SeenRegion:
    """A region that notes where its coordinator is."""

    name, coordinator_role = "report", "reports"

    def __init__(self) -> None:
        self.settings = ShardingSettings(role="reports")
        self.coordinator: NodeId | None = None
        self.events: list[object] = []
        self.router = SimpleNamespace(handle=self.events.append)


@pytest.mark.parametrize(
    ("role", "coordinator_role", "why"),
    [
        ("reports", "reports", "no member hosts it: none is up with role 'reports'"),
        ("", "rulers", "no member coordinates it: none is up with role 'rulers'"),
        ("web", "web", ""),
        ("", "", ""),
    ],
)
async def test_a_role_that_no_member_has_is_the_reason_of_the_region_until_one_is_up(
    role: str, coordinator_role: str, why: str
) -> None:
    region: Any = SeenRegion()
    region.settings, region.coordinator_role = ShardingSettings(role=role), coordinator_role
    node: Any = SimpleNamespace(me=ME, store=None, states=None, note=lambda *_: None)
    make: Any = None
    shell = SingletonShell(region, make, node, 0.0, SingletonSettings())
    shell.coordinator = Recorder([])  # type: ignore[assignment]
    mine = Member(ME, 7356, status=Status.UP, up_number=1, roles=("web",))
    shell.update(TypeMembers(MembershipView(me=ME, members=(mine,))))
    shell.update(TypeMembers(MembershipView(me=ME, members=(mine,))))
    ours = [event for event in region.events if isinstance(event, events.CoordinatorAt)]
    assert ours == [events.CoordinatorAt(None if why else ME, why)]
    other = replace(mine, node=OTHER, roles=("reports", "rulers", "web"), up_number=2)
    shell.update(TypeMembers(MembershipView(me=ME, members=(mine, other))))
    last = [event for event in region.events if isinstance(event, events.CoordinatorAt)][-1]
    assert last == events.CoordinatorAt(OTHER if why else ME)
