"""The versions of the table that travel by gossip, and the messages that the coordinator sends no
more."""

from __future__ import annotations

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.coordinator.table_versions import PUBLISH_S
from shardbus.sharding.messages import Home, PartitionChange
from shardbus.sharding.table_state import unpack_homes
from tests.unit.sharding.coordinator.test_coordinator import FENCE, A, B, CoordinatorDriver, names

GOSSIP = ShardingSettings(homes="gossip")
Sent = list[tuple[NodeId, ev.Message]]


def tables(sent: Sent) -> list[msg.TableState]:
    """The tables that were sent; each to the region of the coordinator's own node."""
    tables_sent = [(to, message) for to, message in sent if isinstance(message, msg.TableState)]
    assert all(to == A for to, _ in tables_sent)
    return [message for _, message in tables_sent]


def homes_of(state: msg.TableState) -> list[Home]:
    return list(unpack_homes(state.homes, state.nodes))


def ready(settings: ShardingSettings = GOSSIP) -> CoordinatorDriver:
    driver = CoordinatorDriver(settings)
    driver.register(A, B)
    driver.wait(1.0)
    return driver


def test_S3_45_only_who_asked_is_told_of_a_home_and_the_table_goes_to_the_own_region() -> None:
    driver = ready()
    driver.ask(B, "1")
    driver.wait(1.0)
    home = Home("1", A, FENCE)
    sent = driver.persisted()
    assert [row for row in sent if not isinstance(row[1], msg.TableState)] == [
        (A, msg.HostShard(1, (home,))),
        (B, msg.ShardHomes(1, (home,))),
    ]
    [state] = tables(sent)
    assert (state.epoch, state.nodes, homes_of(state)) == (1, (A, B), [home])


def test_without_gossip_no_table_travels_and_all_are_told() -> None:
    driver = ready(ShardingSettings())
    driver.ask(B, "1")
    sent = driver.persisted()
    assert not tables(sent)
    assert {to for to, name in names(sent) if name == "ShardHomes"} == {A, B}


def test_a_region_that_has_died_is_answered_no_more() -> None:
    driver = ready()
    driver.ask(B, "1")
    driver.handle(ev.MembersChanged((A,)))
    assert B not in {to for to, _ in driver.persisted()}


def test_versions_grow_by_one_and_changes_in_quick_succession_are_one() -> None:
    driver = ready()
    driver.ask(B, "1")
    driver.wait(1.0)
    [state] = tables(driver.persisted())
    number = state.version
    home = homes_of(state)[0]
    started = ev.MessageReceived(home.node, msg.ShardStarted((home,)))
    assert tables(driver.handle(started)) == [], "within PUBLISH_S"
    [after] = tables(driver.wait(PUBLISH_S))
    assert after.version == number + 1
    assert tables(driver.wait(30.0)) == [], "nothing has changed"


def test_S3_37_a_shard_on_the_move_is_a_change_until_it_runs_at_its_new_home() -> None:
    driver = ready()
    home = driver.home("1")
    [state] = tables(driver.wait(1.0))
    assert (homes_of(state), state.changes) == ([home], ())
    drained = ev.MembersChanged((A, B), draining=(A,))
    sent = driver.handle(drained) + driver.wait(0.0)
    [state] = tables(sent)
    assert state.changes == (PartitionChange("1", A, None, "awaiting"),)
    assert homes_of(state) == [], "messages wait for its next home"
    driver.wait(1.0)
    for node in (A, B):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, (home,))))
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    driver.wait(1.0)
    [state] = tables(driver.persisted())
    there = driver.coordinator.table.homes["1"]
    assert state.changes == (PartitionChange("1", None, B, "complete"),)
    assert homes_of(state) == [there]
    sent = driver.handle(ev.MessageReceived(B, msg.ShardStarted((there,))))
    [state] = tables(sent + driver.wait(1.0))
    assert (homes_of(state), state.changes) == ([there], ())


def test_a_region_that_registers_or_dies_makes_a_version() -> None:
    driver = CoordinatorDriver(GOSSIP)
    [state] = tables(driver.register(A) + driver.wait(1.0))[-1:]
    assert state.nodes == (A,)
    [state] = tables(driver.register(B) + driver.wait(1.0))
    assert state.nodes == (A, B)
    [state] = tables(driver.handle(ev.MembersChanged((A,))) + driver.wait(1.0))
    assert state.nodes == (A,)


def test_homes_of_direct_moves_travel_by_their_own_messages() -> None:
    driver = ready(ShardingSettings(homes="gossip", handoff="ordered"))
    home = driver.home("1")
    driver.wait(1.0)
    sent = driver.handle(ev.MembersChanged((A, B), draining=(A,))) + driver.persisted()
    state = tables(sent + driver.wait(1.0))[-1]
    assert state.changes == (PartitionChange("1", A, B, "awaiting"),)
    assert homes_of(state) == []
    move = msg.ShardMove(home, Home("1", B, home.fence + 1))
    driver.handle(ev.MessageReceived(A, msg.ShardMoved(A, (move,))))
    sent = driver.persisted() + driver.wait(1.0)
    assert (B, "HomesMoved") in names(sent)
    state = tables(sent)[-1]
    assert [change.status for change in state.changes if change.source] == ["complete"]
    assert homes_of(state) == []
    sent = driver.handle(ev.MessageReceived(B, msg.MoveComplete(B, (move,))))
    sent += driver.handle(ev.MessageReceived(B, msg.ShardStarted((move.new,))))
    state = tables(sent + driver.wait(1.0))[-1]
    assert (homes_of(state), state.changes) == ([move.new], ())
