"""The coordinator: events in, messages and writes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from shardbus.bounds import EPOCH_MAX
from shardbus.config.loading import options
from shardbus.config.settings import ClusterSettings, ShardingSettings
from shardbus.errors import Refused
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.strategies import AllocationStrategy, External, LeastShard, Move
from shardbus.sharding.coordinator.coordinator import COALESCE_S, Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.coordinator.instance_rows import SHRINK_AFTER_S, InstanceRows
from shardbus.sharding.coordinator.ledger import CONFIRM_S, Ledger
from shardbus.sharding.coordinator.moves import SLOW_S
from shardbus.sharding.coordinator.outbox import CHUNK, HomeMessage, Outbox
from shardbus.sharding.coordinator.rebalancing import ShardCountCheck
from shardbus.sharding.coordinator.registry import LOSS_PATIENCE, Registry, cluster_minimum
from shardbus.sharding.coordinator.starts import TRIES
from shardbus.sharding.instances import Instances
from shardbus.sharding.intents import INTENT_MARK
from shardbus.sharding.messages import Home, ShardMove
from shardbus.sharding.overrides import Overrides
from shardbus.store.protocol import StoredTable
from tests.records import replace

A, B, C, CLIENT = (NodeId(name, 1, 1) for name in ("a", "b", "c", "client"))
LAYOUT = "crc32/8"
FENCE = 1 << 32


class CoordinatorDriver:
    """A coordinator on node A, and a store that answers on demand."""

    def __init__(
        self,
        settings: ShardingSettings | None = None,
        stored: StoredTable | None = None,
        live: tuple[NodeId, ...] = (A, B),
        strategy: AllocationStrategy | None = None,
        floor: int = 0,
        instances: Instances | None = None,
        cluster_minimum: int = 0,
        *,
        threaded: bool = False,
    ) -> None:
        self.settings = settings or ShardingSettings()
        self.now = 0.0
        chosen = strategy or LeastShard()
        self.coordinator = Coordinator(
            "t",
            A,
            LAYOUT,
            self.settings,
            chosen,
            instances,
            cluster_minimum,
            threaded=threaded,
        )
        self.questions: list[ev.AskStrategy] = []
        self.writes: list[ev.Persist] = []
        self.taken = False
        """Another coordinator has claimed an epoch in the store."""
        self.notes: list[str] = []
        self.stopped = ""
        self.stopped_shards: list[str] = []
        self.handle(ev.Start(floor))
        self.handle(ev.TableLoaded(stored))
        table = stored or StoredTable(0, LAYOUT, {})
        self.handle(ev.EpochClaimed(replace(table, epoch=self.coordinator.epoch)))
        self.handle(ev.MembersChanged(live))

    def handle(self, *events: ev.CoordinatorEvent) -> list[tuple[NodeId, ev.Message]]:
        """Handle these in one turn, and return the messages at its end."""
        effects = [e for event in events for e in self.coordinator.handle(event, self.now)]
        return self.perform(effects + self.turn())

    def turn(self) -> list[ev.CoordinatorEffect]:
        effects: list[ev.CoordinatorEffect] = []
        while (due := self.coordinator.deadline()) is not None and due <= self.now:
            effects += self.coordinator.tick(self.now)
        self.coordinator.check()
        return effects

    def wait(self, seconds: float) -> list[tuple[NodeId, ev.Message]]:
        """Time passes, deadline by deadline."""
        sent: list[tuple[NodeId, ev.Message]] = []
        until = self.now + seconds
        while (due := self.coordinator.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            sent += self.perform(self.turn())
        self.now = until
        return sent

    def perform(self, effects: Iterable[ev.CoordinatorEffect]) -> list[tuple[NodeId, ev.Message]]:
        sent: list[tuple[NodeId, ev.Message]] = []
        for effect in effects:
            match effect:
                case ev.Send(to, message):
                    sent.append((to, message))
                case ev.Persist() if not effect.homes:
                    sent += self.handle(self.confirm(effect))
                case ev.Persist():
                    self.writes.append(effect)
                case ev.AskStrategy():
                    self.questions.append(effect)
                case ev.Stop(reason):
                    self.stopped = reason
                case ev.ShardsStopped(shards):
                    self.stopped_shards += shards
                case ev.Note(kind):
                    self.notes.append(kind)
                case _:
                    pass
        return sent

    def confirm(self, nothing: ev.Persist) -> ev.CoordinatorEvent:
        """Return the answer of the store to an empty write, at once."""
        op_id = nothing.op_id
        return ev.PersistFailed(op_id, True) if self.taken else ev.Persisted(op_id)

    def persisted(self) -> list[tuple[NodeId, ev.Message]]:
        """The last write is durable."""
        return self.handle(ev.Persisted(self.writes[-1].op_id))

    def register(self, *nodes: NodeId, proxy: bool = False) -> list[tuple[NodeId, ev.Message]]:
        return self.handle(
            *(ev.MessageReceived(node, msg.Register(node, proxy, LAYOUT, ())) for node in nodes)
        )

    def ask(self, node: NodeId, *shards: str) -> list[tuple[NodeId, ev.Message]]:
        return self.handle(ev.MessageReceived(node, msg.GetShardHome(shards)))

    def home(self, shard: str, node: NodeId = A) -> Home:
        """Give the shard a home, confirmed, and return it."""
        self.ask(node, shard)
        self.persisted()
        home = self.coordinator.table.homes[shard]
        self.handle(ev.MessageReceived(home.node, msg.ShardStarted((home,))))
        return home


def ready() -> CoordinatorDriver:
    driver = CoordinatorDriver()
    driver.register(A, B)
    return driver


def names(sent: list[tuple[NodeId, ev.Message]]) -> list[tuple[NodeId, str]]:
    return [(to, type(message).__name__) for to, message in sent]


def test_homes_are_announced_only_after_they_are_durable() -> None:
    driver = ready()
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), "its home is being stored"))]
    assert driver.writes[-1].homes == {"1": (A, FENCE)}
    home = Home("1", A, FENCE)
    assert driver.persisted() == [
        (A, msg.HostShard(1, (home,))),
        (A, msg.ShardHomes(1, (home,))),
        (B, msg.ShardHomes(1, (home,))),
    ]


def test_all_requests_of_a_turn_are_one_plan_and_one_write() -> None:
    driver = ready()
    driver.handle(*(ev.MessageReceived(A, msg.GetShardHome((str(i),))) for i in range(20)))
    assert len(driver.writes) == 1
    homes = [home for home in driver.writes[0].homes.values() if home is not None]
    assert sorted(node for node, _ in homes) == [A] * 10 + [B] * 10
    assert sorted(fence for _, fence in homes) == list(range(FENCE, FENCE + 20))


def test_requests_during_a_write_gather_for_the_next_write() -> None:
    driver = ready()
    driver.ask(A, "1")
    driver.ask(B, "2")
    driver.ask(B, "3")
    assert len(driver.writes) == 1
    driver.persisted()
    assert [*driver.writes[1].homes] == ["2", "3"]


def test_a_known_home_is_answered_at_once() -> None:
    driver = ready()
    home = driver.home("1")
    assert driver.ask(B, "1") == [(B, msg.ShardHomes(1, (home,)))]


def test_a_client_that_got_wait_gets_the_home_later() -> None:
    driver = ready()
    driver.ask(CLIENT, "1")
    assert (CLIENT, "ShardHomes") in names(driver.persisted())
    assert driver.coordinator.table.proxies == {}


@pytest.mark.parametrize("min_members", [2, 3])
def test_no_home_is_allocated_before_enough_regions_have_registered(min_members: int) -> None:
    driver = CoordinatorDriver(ShardingSettings(min_members=min_members))
    driver.register(A)
    driver.wait(2.0)
    reason = f"1 of {min_members} regions registered"
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), reason))]
    assert not driver.writes
    driver.register(B)
    assert bool(driver.writes) is (min_members == 2)


def test_a_failed_write_is_repeated_as_the_same_operation_with_a_growing_backoff() -> None:
    driver = ready()
    driver.ask(A, "1")
    gaps: list[float] = []
    for _ in range(9):
        before = driver.now
        driver.handle(ev.PersistFailed(driver.writes[-1].op_id, False))
        while len(driver.writes) < len(gaps) + 2:
            driver.wait(0.25)
        gaps.append(driver.now - before)
    assert gaps == [0.5, 1, 2, 4, 8, 16, 25, 25, 25]
    assert len({write.op_id for write in driver.writes}) == 1
    assert (A, "HostShard") in names(driver.persisted())


def test_a_refused_write_ends_the_coordinator() -> None:
    driver = ready()
    driver.ask(A, "1")
    assert driver.handle(ev.PersistFailed(driver.writes[-1].op_id, True)) == []
    assert driver.stopped
    assert driver.coordinator.deadline() is None
    assert driver.ask(A, "1") == []


def test_a_higher_epoch_in_gossip_ends_the_coordinator() -> None:
    driver = ready()
    driver.handle(ev.EpochSeen(1))
    assert not driver.stopped
    driver.handle(ev.EpochSeen(2))
    assert "epoch 2" in driver.stopped


def test_a_region_with_another_layout_is_refused_and_the_reason_names_both() -> None:
    driver = CoordinatorDriver()
    [(to, refused)] = driver.handle(ev.MessageReceived(B, msg.Register(B, False, "crc32/9", ())))
    assert to == B
    assert isinstance(refused, msg.RegisterRefused)
    assert "crc32/8" in refused.reason
    assert "crc32/9" in refused.reason
    assert B not in driver.coordinator.table.regions


def test_a_message_in_the_name_of_another_node_is_ignored() -> None:
    driver = ready()
    home = driver.home("1")
    assert home.node == A
    assert driver.handle(ev.MessageReceived(B, msg.ShardStopped(A, (home,)))) == []
    assert driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, (home,)))) == []
    assert driver.handle(ev.MessageReceived(B, msg.GracefulShutdownRequest(A))) == []
    assert "forged" in driver.notes
    assert driver.coordinator.table.homes["1"] == home


def test_a_repeated_registration_changes_nothing_and_is_answered_with_all_homes() -> None:
    driver = ready()
    home = driver.home("1")
    before = driver.coordinator.table
    sent = driver.handle(ev.MessageReceived(A, msg.Register(A, False, LAYOUT, (home,))))
    assert sent == [(A, msg.RegisterAck(1, A, (home,)))]
    assert driver.coordinator.table == before


def test_a_registration_waits_for_membership() -> None:
    driver = ready()
    assert driver.register(C) == []
    assert (C, "RegisterAck") in names(driver.handle(ev.MembersChanged((A, B, C))))


def test_dead_nodes_shards_get_homes_at_once_in_one_write() -> None:
    driver = ready()
    at_b = [home for home in map(driver.home, "12345678") if home.node == B]
    driver.handle(ev.MembersChanged((A,)))
    assert [*driver.writes[-1].homes] == [home.shard for home in at_b]
    hosts = [m for _, m in driver.persisted() if isinstance(m, msg.HostShard)]
    assert [home.shard for home in hosts[0].homes] == [home.shard for home in at_b]
    assert all(home.fence > at_b[-1].fence for home in hosts[0].homes)


def test_a_node_that_dies_during_the_write_gets_nothing() -> None:
    driver = ready()
    driver.ask(A, "1", "2")
    driver.handle(ev.MembersChanged((A,)))
    sent = driver.persisted()
    assert all(to == A for to, _ in sent)
    assert driver.writes[-1].homes == {"2": (A, FENCE + 2)}


def test_a_takeover_waits_for_regions_and_then_allocates_orphans_in_one_write() -> None:
    homes = {"1": (A, 5), "2": (C, 6), "3": (C, 7)}
    driver = CoordinatorDriver(stored=StoredTable(4, LAYOUT, homes))
    assert driver.coordinator.epoch == 5
    driver.handle(ev.MessageReceived(A, msg.Register(A, False, LAYOUT, (Home("1", A, 5),))))
    assert not driver.writes, "B has not registered, and the grace is not over"
    driver.register(B)
    assert driver.writes[-1].homes == {"2": (B, 5 << 32), "3": (A, (5 << 32) + 1)}


def test_a_takeover_waits_no_longer_than_the_grace() -> None:
    driver = CoordinatorDriver(stored=StoredTable(4, LAYOUT, {"2": (C, 6)}))
    driver.register(A)
    driver.wait(ShardingSettings().waiting_for_state_timeout)
    assert driver.writes[-1].homes == {"2": (A, 5 << 32)}


def test_a_region_that_lacks_a_shard_of_the_table_gets_host_shard_again() -> None:
    driver = CoordinatorDriver(stored=StoredTable(4, LAYOUT, {"1": (A, 5)}))
    sent = driver.register(A)
    assert (A, msg.HostShard(5, (Home("1", A, 5),))) in sent


def test_a_lost_table_is_rebuilt_from_what_regions_host() -> None:
    driver = CoordinatorDriver()
    a, b, late = Home("1", A, 70), Home("1", B, 71), Home("2", A, 99 << 32)
    driver.handle(ev.MessageReceived(A, msg.Register(A, False, LAYOUT, (a, late))))
    sent = driver.handle(ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (b,))))
    sent += driver.persisted()
    sent += driver.persisted()
    assert (A, msg.HandOff(1, (a,))) in sent, "of two homes the higher fence stays"
    assert driver.coordinator.table.homes == {"1": b, "2": late}
    driver.ask(A, "3")
    assert driver.writes[-1].homes == {"3": (A, (99 << 32) + 1)}, "above every fence reported"


def move(driver: CoordinatorDriver) -> Home:
    """Two shards at A, and B joins: the move of one has begun."""
    driver.handle(ev.MembersChanged((A,)))
    driver.register(A)
    homes = [driver.home("1"), driver.home("2")]
    driver.handle(ev.MembersChanged((A, B)))
    driver.register(B)
    sent = driver.wait(COALESCE_S)
    begun = [(to, m) for to, m in sent if isinstance(m, msg.BeginHandOff)]
    assert begun == [(A, msg.BeginHandOff(1, (homes[1],))), (B, msg.BeginHandOff(1, (homes[1],)))]
    return homes[1]


def ack(driver: CoordinatorDriver, node: NodeId, home: Home) -> list[tuple[NodeId, ev.Message]]:
    return driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, (home,))))


def started(driver: CoordinatorDriver, node: NodeId) -> list[tuple[NodeId, ev.Message]]:
    """The node confirms all that it was given."""
    table = driver.coordinator.table
    homes = tuple(table.homes[shard] for shard in table.shards_at(node))
    return driver.handle(ev.MessageReceived(node, msg.ShardStarted(homes)))


def test_a_move_goes_through_its_phases() -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    assert ack(driver, A, home) == []
    assert driver.ask(B, "2") == [(B, msg.Wait(1, ("2",), "the shard is on the move"))]
    assert ack(driver, B, home) == [(A, msg.HandOff(1, (home,)))]
    assert driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,)))) == []
    assert driver.writes[-1].homes == {"2": (B, FENCE + 2)}
    assert (B, msg.HostShard(1, (Home("2", B, FENCE + 2),))) in driver.persisted()


def test_a_late_region_does_not_hold_up_a_move_and_gets_no_shard() -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    ack(driver, A, home)
    sent = driver.wait(ShardingSettings().begin_handoff_timeout)
    assert (A, msg.HandOff(1, (home,))) in sent
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.writes[-1].homes == {"2": (A, FENCE + 2)}, "B may still await its echo"


@pytest.mark.parametrize("setting", [5.0, 3.0])
def test_S2_66_regions_have_the_time_of_the_setting_to_acknowledge(setting: float) -> None:
    driver = CoordinatorDriver(ShardingSettings(begin_handoff_timeout=setting), live=(A,))
    home = move(driver)
    ack(driver, A, home)
    hand_off = (A, msg.HandOff(1, (home,)))
    assert hand_off not in driver.wait(setting - 0.01)
    assert hand_off in driver.wait(0.01)


@pytest.mark.parametrize("setting", [60.0, 25.0])
def test_S2_66_an_owner_has_the_time_of_the_setting_to_stop_a_shard(setting: float) -> None:
    driver = CoordinatorDriver(ShardingSettings(handoff_timeout=setting), live=(A,))
    home = move(driver)
    ack(driver, A, home)
    hand_off = (A, msg.HandOff(1, (home,)))
    assert hand_off in ack(driver, B, home)
    assert hand_off not in driver.wait(setting - 0.01)
    assert hand_off in driver.wait(0.01)


def test_an_owner_that_does_not_stop_keeps_the_shard_until_it_stops_or_dies() -> None:
    driver = CoordinatorDriver(live=(A, C))
    home = move(driver)
    ack(driver, A, home)
    ack(driver, B, home)
    writes = len(driver.writes)
    sent = driver.wait(200)
    assert [m for _, m in sent if isinstance(m, msg.HandOff)] == [msg.HandOff(1, (home,))] * 3
    assert len(driver.writes) == writes
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.writes[-1].homes == {"2": (B, FENCE + 2)}


def test_an_idle_coordinator_learns_that_it_was_replaced() -> None:
    driver = ready()
    driver.home("1")
    driver.wait(5 * CONFIRM_S)
    assert driver.stopped == ""
    driver.taken = True
    driver.wait(CONFIRM_S)
    assert driver.stopped == "the store has a newer epoch"


def test_no_empty_write_is_made_while_a_write_is_under_way() -> None:
    driver = ready()
    driver.taken = True
    driver.wait(CONFIRM_S - 1.0)
    driver.ask(A, "1")
    driver.wait(2.0)
    driver.persisted()
    driver.wait(CONFIRM_S - 1.0)
    assert driver.stopped == ""


@pytest.mark.parametrize("acked", [True, False])
def test_the_death_of_a_node_completes_a_move(acked: bool) -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    if acked:
        ack(driver, A, home)
        sent = driver.handle(ev.MembersChanged((A,)))
        assert (A, msg.HandOff(1, (home,))) in sent, "the dead acknowledge"
        driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
        assert driver.writes[-1].homes == {"2": (A, FENCE + 2)}
    else:
        driver.handle(ev.MembersChanged((B,)))
        assert set(driver.writes[-1].homes) == {"1", "2"}


def test_a_late_message_about_an_earlier_home_changes_nothing() -> None:
    driver = ready()
    old = driver.home("1")
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (old,))))
    driver.persisted()
    new = driver.home("1")
    assert new.fence > old.fence
    assert driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (old,)))) == []
    assert driver.coordinator.table.homes["1"] == new
    assert driver.coordinator.state_of("1") == "running"


def test_a_shard_that_stops_unasked_has_no_home_until_the_next_request() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.writes[-1].homes == {"1": None}
    driver.persisted()
    assert driver.coordinator.state_of("1") == "unallocated"
    driver.ask(B, "1")
    assert driver.writes[-1].homes["1"] is not None


def test_a_region_that_does_not_confirm_gets_host_shard_again_and_then_loses_the_shard() -> None:
    driver = ready()
    driver.ask(A, "1")
    driver.persisted()
    home = driver.coordinator.table.homes["1"]
    sent = driver.wait(3 * ShardingSettings().shard_start_timeout)
    assert [m for _, m in sent if isinstance(m, msg.HostShard)] == [msg.HostShard(1, (home,))] * 2
    assert (B, msg.BeginHandOff(1, (home,))) in sent
    ack(driver, A, home)
    ack(driver, B, home)
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.writes[-1].homes == {"1": (B, FENCE + 1)}


@pytest.mark.parametrize("setting", [10.0, 4.0])
def test_S2_67_a_region_has_the_time_of_the_setting_to_confirm(setting: float) -> None:
    driver = CoordinatorDriver(ShardingSettings(shard_start_timeout=setting))
    driver.register(A, B)
    driver.ask(A, "1")
    driver.persisted()
    again = (A, msg.HostShard(1, (driver.coordinator.table.homes["1"],)))
    assert again not in driver.wait(setting - 0.01)
    assert again in driver.wait(0.01)


def bye(driver: CoordinatorDriver, node: NodeId) -> list[tuple[NodeId, ev.Message]]:
    return driver.handle(ev.MessageReceived(node, msg.GracefulShutdownRequest(node)))


def test_a_leaving_region_hands_off_within_the_bound_and_is_confirmed_when_it_is_empty() -> None:
    driver = CoordinatorDriver(ShardingSettings(max_moves_in_flight=2))
    driver.register(A, B)
    homes = [home for home in map(driver.home, map(str, range(10))) if home.node == B]
    sent = bye(driver, B)
    assert bye(driver, B) == [], "asked again, nothing more begins"
    for part in (homes[:2], homes[2:4], homes[4:]):
        assert (A, msg.BeginHandOff(1, tuple(part))) in sent
        for node in (A, B):
            sent = driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, tuple(part))))
        assert sent == [(B, msg.HandOff(1, tuple(part)))]
        stopped = driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, tuple(part))))
        assert stopped == [], "what is on the move until it has a home counts"
        sent = driver.persisted()
    assert (B, msg.RegionStopped(B)) in sent
    assert bye(driver, B) == [(B, msg.RegionStopped(B))]
    assert B in driver.coordinator.table.proxies, "it still gets new homes"


def leaving_directly(shards: int, bound: int) -> CoordinatorDriver:
    """C is about to leave with a third of the shards, which move in mode `ordered`."""
    settings = ShardingSettings(handoff="ordered", max_moves_in_flight=bound)
    driver = CoordinatorDriver(settings, live=(A, B, C))
    driver.register(A, B, C)
    driver.ask(A, *map(str, range(shards)))
    driver.persisted()
    return driver


def begun(sent: list[tuple[NodeId, ev.Message]]) -> list[ShardMove]:
    return [
        move for _, message in sent if isinstance(message, msg.BeginMove) for move in message.moves
    ]


def test_direct_moves_that_begin_together_are_spread_over_the_others() -> None:
    driver = leaving_directly(shards=30, bound=4)
    bye(driver, C)
    moves = begun(driver.persisted())
    assert sorted(move.new.node for move in moves) == [A, A, B, B]
    driver.handle(ev.MessageReceived(C, msg.ShardMoved(C, tuple(moves))))
    driver.persisted()  # the homes; then the intents of the next moves
    later = begun(driver.persisted())
    assert sorted(move.new.node for move in later) == [A, A, B, B], "the first four count there"


def test_a_turn_of_a_leave_looks_at_no_more_shards_than_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = 4
    driver = leaving_directly(shards=3_000, bound=bound)
    looked: list[str] = []
    home_of = Ledger.home_of
    monkeypatch.setattr(
        Ledger, "home_of", lambda self, shard: (looked.append(shard), home_of(self, shard))[1]
    )
    bye(driver, C)
    moves = begun(driver.persisted())
    driver.handle(ev.MessageReceived(C, msg.ShardMoved(C, tuple(moves))))
    driver.persisted()
    assert len(begun(driver.persisted())) == bound
    assert len(looked) < 20 * bound


def test_a_drained_region_that_gets_a_shard_by_an_unknown_move_hosts_again() -> None:
    """The store was wiped, and the old home has obeyed the coordinator before."""
    driver = ready()
    home = driver.home("7")
    other = B if home.node == A else A
    driver.handle(ev.MessageReceived(other, msg.GracefulShutdownRequest(other)))
    assert driver.coordinator.table.proxies.keys() == {other}
    moved = ShardMove(home, Home("7", other, home.fence + 5))
    driver.handle(ev.MessageReceived(home.node, msg.ShardMoved(home.node, (moved,))))
    driver.persisted()
    assert driver.coordinator.table.homes["7"] == moved.new
    sent = driver.handle(ev.MessageReceived(other, msg.GracefulShutdownRequest(other)))
    assert (other, "RegionStopped") not in names(sent)


def intent_of_a_dead_home() -> CoordinatorDriver:
    """A coordinator that takes over: shard 3 was to move from C, which is dead, to B. The table has
    shard 2 at B."""
    rows = {"3": (C, FENCE), "2": (B, FENCE + 1), INTENT_MARK + "3": (B, FENCE + 2)}
    stored = StoredTable(1, LAYOUT, rows)
    return CoordinatorDriver(replace(ShardingSettings(), handoff="ordered"), stored)


def test_a_shard_whose_new_home_became_a_proxy_before_the_takeover_gets_another() -> None:
    driver = intent_of_a_dead_home()
    driver.register(A)
    driver.register(B, proxy=True)
    driver.ask(A, "3", "2")
    for _ in range(5):  # nothing is written again and again
        driver.persisted()
    homes = {shard: node for write in driver.writes for shard, node in write.homes.items()}
    assert homes["3"][0] == homes["2"][0] == A  # type: ignore[index]
    assert homes[INTENT_MARK + "3"] is None
    assert len(driver.writes) <= 2


def test_the_home_of_a_move_to_a_node_that_has_not_registered_is_written_when_it_has() -> None:
    rows = {"3": (C, FENCE), INTENT_MARK + "3": (B, FENCE + 2)}
    ordered = replace(ShardingSettings(), handoff="ordered")
    driver = CoordinatorDriver(ordered, StoredTable(1, LAYOUT, rows))
    driver.register(A)
    assert driver.writes == []
    driver.register(B)
    assert [write.homes for write in driver.writes] == [
        {"3": (B, FENCE + 2), INTENT_MARK + "3": None}
    ]


def test_slow_entities_do_not_hold_back_the_shards_behind_them() -> None:
    driver = CoordinatorDriver(ShardingSettings(max_moves_in_flight=1))
    driver.register(A, B)
    slow, *others = [home for home in map(driver.home, "123456") if home.node == B]
    bye = ev.MessageReceived(B, msg.GracefulShutdownRequest(B))
    assert (A, msg.BeginHandOff(1, (slow,))) in driver.handle(bye)
    ack(driver, A, slow)
    ack(driver, B, slow)
    driver.wait(SLOW_S / 2)
    assert driver.handle(bye) == []
    driver.wait(SLOW_S / 2)
    assert (A, msg.BeginHandOff(1, tuple(others))) in driver.handle(bye)


def test_the_shards_of_the_last_region_stop_without_a_new_home() -> None:
    driver = CoordinatorDriver(live=(A,))
    driver.register(A)
    home = driver.home("1")
    assert (A, msg.BeginHandOff(1, (home,))) in driver.handle(
        ev.MessageReceived(A, msg.GracefulShutdownRequest(A))
    )
    assert ack(driver, A, home) == [(A, msg.HandOff(1, (home,)))]
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.writes[-1].homes == {"1": None}
    assert driver.persisted() == [(A, msg.RegionStopped(A))]


def test_nothing_is_rebalanced_while_a_member_is_unreachable_or_joining() -> None:
    driver = CoordinatorDriver(live=(A,))
    driver.register(A)
    for shard in "1234":
        driver.home(shard)
    driver.handle(ev.MembersChanged((A, B), unsettled=True))
    driver.register(B)
    assert driver.wait(60) == []
    driver.handle(ev.MembersChanged((A, B)))
    assert {name for _, name in names(driver.wait(COALESCE_S))} == {"BeginHandOff"}


@pytest.mark.parametrize("setting", [10.0, 4.0])
def test_S2_70_the_balance_is_checked_at_the_interval_of_the_setting(setting: float) -> None:
    checks: list[object] = []

    class Watched(LeastShard):
        def rebalance(self, *arguments: Any) -> list[Move]:
            checks.append(arguments)
            return []

    settings = ShardingSettings(rebalance_interval=setting)
    driver = CoordinatorDriver(settings, strategy=Watched())
    driver.register(A, B)
    driver.home("1")
    driver.wait(3 * setting)
    checks.clear()
    driver.wait(3 * setting)
    assert len(checks) == 3


def test_an_unfit_node_gets_no_new_shard() -> None:
    driver = ready()
    driver.handle(ev.MembersChanged((A, B), unfit=(A,)))
    driver.ask(A, *"12345678")
    assert {node for node, _ in filter(None, driver.writes[-1].homes.values())} == {B}


@pytest.mark.parametrize(
    ("versions", "takes"),
    [
        (("1.0.0", "1.0.0", "1.0.0"), (A, B, C)),
        (("1.0", "v1.0.0", "1.0.0+7"), (A, B, C)),
        (("1.9.0", "1.10.0", "1.10.0"), (B, C)),
        (("1.10.0-rc.1", "1.10.0-rc.2", "1.10.0"), (C,)),
        (("", "0.0.1", ""), (B,)),
    ],
)
def test_B64_new_shards_go_to_the_highest_version(
    versions: tuple[str, ...], takes: tuple[NodeId, ...]
) -> None:
    driver = CoordinatorDriver()
    driver.handle(
        ev.MembersChanged((A, B, C), versions=dict(zip((A, B, C), versions, strict=True)))
    )
    driver.register(A, B, C)
    driver.ask(CLIENT, *"123456")
    homes = [home[0] for home in driver.writes[-1].homes.values() if home is not None]
    assert {node: homes.count(node) for node in takes} == dict.fromkeys(takes, 6 // len(takes))


def test_B64_the_version_of_an_unfit_node_does_not_count() -> None:
    driver = ready()
    driver.handle(ev.MembersChanged((A, B), unfit=(B,), versions={A: "1.0.0", B: "1.1.0"}))
    driver.ask(CLIENT, "1", "2")
    assert {home and home[0] for home in driver.writes[-1].homes.values()} == {A}


def test_B64_a_shard_goes_to_an_old_version_if_the_new_one_does_not_start_it() -> None:
    driver = ready()
    driver.handle(ev.MembersChanged((A, B), versions={A: "1.0.0", B: "1.1.0"}))
    driver.ask(A, "1")
    driver.persisted()
    home = driver.coordinator.table.homes["1"]
    assert home.node == B
    driver.wait(3 * ShardingSettings().shard_start_timeout)
    ack(driver, A, home)
    ack(driver, B, home)
    driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, (home,))))
    assert driver.writes[-1].homes == {"1": (A, FENCE + 1)}


def test_B64_shards_that_drain_go_to_the_highest_version() -> None:
    driver = ready()
    homes = tuple(home for home in map(driver.home, "123456") if home.node == B)
    driver.handle(ev.MembersChanged((A, B, C), versions={A: "1.0.0", B: "1.0.0", C: "1.1.0"}))
    driver.register(C)
    driver.handle(ev.MessageReceived(B, msg.GracefulShutdownRequest(B)))
    for node in (A, B, C):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, homes)))
    driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, homes)))
    assert [home and home[0] for home in driver.writes[-1].homes.values()] == [C, C, C]


def test_drained_shards_that_avoid_a_late_region_are_spread_over_the_others() -> None:
    driver = ready()
    homes = tuple(home for home in map(driver.home, map(str, range(8))) if home.node == B)
    late, other = NodeId("late", 1, 1), NodeId("other", 1, 1)
    driver.handle(ev.MembersChanged((A, B, late, other), unfit=(A,)))
    driver.register(late, other, C)
    driver.handle(ev.MembersChanged((A, B, C, late, other), unfit=(A,)))
    driver.handle(ev.MessageReceived(B, msg.GracefulShutdownRequest(B)))
    for node in (A, B, C, other):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, homes)))
    driver.wait(ShardingSettings().begin_handoff_timeout)
    driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, homes)))
    targets = [home[0] for home in driver.writes[-1].homes.values() if home is not None]
    assert sorted(targets) == [C, C, other, other]


def test_B65_nothing_is_rebalanced_while_versions_differ() -> None:
    driver = CoordinatorDriver(live=(A,))
    driver.register(A)
    for shard in "1234":
        driver.home(shard)
    driver.handle(ev.MembersChanged((A, B), versions={A: "1.0.0", B: "1.1.0"}))
    driver.register(B)
    assert driver.wait(60) == []
    driver.handle(ev.MembersChanged((A, B), versions={A: "1.1.0", B: "1.1.0"}))
    assert {name for _, name in names(driver.wait(COALESCE_S))} == {"BeginHandOff"}


def test_B65_the_version_of_a_node_that_hosts_nothing_does_not_count() -> None:
    driver = CoordinatorDriver(live=(A,))
    driver.register(A)
    for shard in "1234":
        driver.home(shard)
    driver.handle(ev.MembersChanged((A, B, C), versions={A: "1.0.0", B: "1.0.0", C: "1.1.0"}))
    driver.register(B)
    assert driver.wait(60) == [], "C may be about to host"
    driver.register(C, proxy=True)
    assert "BeginHandOff" in {name for _, name in names(driver.wait(COALESCE_S))}


def test_B65_planned_moves_are_dropped_when_a_rollout_begins() -> None:
    driver = CoordinatorDriver(ShardingSettings(max_moves_in_flight=1), live=(A,))
    driver.register(A)
    for shard in "123456":
        driver.home(shard)
    driver.handle(ev.MembersChanged((A, B)))
    driver.register(B)
    [begun] = [
        m for to, m in driver.wait(COALESCE_S) if to == A and isinstance(m, msg.BeginHandOff)
    ]
    driver.handle(ev.MembersChanged((A, B, C), versions={A: "1.0.0", B: "1.0.0", C: "1.1.0"}))
    for node in (A, B):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, begun.homes)))
    sent = driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, begun.homes)))
    sent += driver.persisted() + started(driver, B) + driver.wait(60)
    assert "BeginHandOff" not in {name for _, name in names(sent)}


def directed(places: dict[str, NodeId]) -> Overrides:
    return Overrides({shard: node.address for shard, node in places.items()})


def test_B69_a_shard_is_placed_and_moved_by_an_operator() -> None:
    driver = CoordinatorDriver(strategy=External())
    driver.handle(directed({"1": B, "2": A}))
    driver.register(A, B)
    assert driver.home("1").node == B
    home = driver.home("2")
    assert home.node == A
    assert driver.wait(60) == [], "without a word nothing moves, however uneven it is"
    begun = driver.handle(directed({"2": B}))
    assert [m for to, m in begun if to == A] == [msg.BeginHandOff(1, (home,))]


def test_B69_a_shard_whose_place_comes_later_moves_there_then() -> None:
    driver = CoordinatorDriver(strategy=External())
    driver.handle(directed({"1": C}))
    driver.register(A, B)
    home = driver.home("1")
    assert home.node in (A, B)
    driver.handle(ev.MembersChanged((A, B, C)))
    driver.register(C)
    begun = [m for to, m in driver.wait(COALESCE_S) if to == C]
    assert begun == [msg.BeginHandOff(1, (home,))]


def test_S319_under_any_strategy_a_shard_moves_to_its_place() -> None:
    driver = ready()
    before = driver.home("1")
    other = B if before.node == A else A
    begun = driver.handle(directed({"1": other}))
    assert [m for to, m in begun if to == A] == [msg.BeginHandOff(1, (before,))]
    driver.coordinator.rebalancing.check_places({A.address, B.address, C.address})
    driver.handle(ev.MembersChanged((A, B), unfit=(B,)))
    driver.coordinator.rebalancing.check_places({A.address, C.address})
    with pytest.raises(Refused, match=f"{B.address} takes no shard"):
        driver.coordinator.rebalancing.check_places({A.address, B.address})


def joined(bound: int) -> tuple[CoordinatorDriver, list[tuple[NodeId, ev.Message]]]:
    """B has joined A, which hosts ten shards, and the messages at the begin of the plan."""
    driver = CoordinatorDriver(ShardingSettings(max_moves_in_flight=bound), live=(A,))
    driver.register(A)
    driver.ask(A, *map(str, range(10)))
    driver.persisted()
    driver.handle(
        ev.MessageReceived(A, msg.ShardStarted(tuple(driver.coordinator.table.homes.values())))
    )
    driver.handle(ev.MembersChanged((A, B)))
    driver.register(B)
    return driver, driver.wait(COALESCE_S)


def stopped(driver: CoordinatorDriver, homes: tuple[Home, ...]) -> list[tuple[NodeId, ev.Message]]:
    """These shards of A stop."""
    for node in (A, B):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, homes)))
    return driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, homes)))


def leaving_a(sent: list[tuple[NodeId, ev.Message]]) -> list[msg.BeginHandOff]:
    return [m for to, m in sent if to == A and isinstance(m, msg.BeginHandOff)]


def carried_out(
    driver: CoordinatorDriver, sent: list[tuple[NodeId, ev.Message]]
) -> list[list[str]]:
    """The shards of the rest of the plan, by the turns in which they begin to move."""
    moved: list[list[str]] = []
    while begun := leaving_a(sent):
        [begin] = begun
        moved.append([home.shard for home in begin.homes])
        assert stopped(driver, begin.homes) == [], "it moves until the store has its new home"
        sent = driver.persisted()
    return moved


def test_a_plan_is_carried_out_within_the_bound() -> None:
    driver, sent = joined(bound=2)
    assert [len(shards) for shards in carried_out(driver, sent)] == [2, 2, 1]
    assert len(driver.coordinator.table.shards_at(B)) == 5


def test_a_planned_shard_that_has_moved_for_another_reason_does_not_move_again() -> None:
    planned = carried_out(*joined(bound=1))
    driver, sent = joined(bound=1)
    [begin] = leaving_a(sent)
    last = driver.coordinator.table.homes[planned[-1][0]]
    driver.handle(ev.StopShards((last.shard,)))
    stopped(driver, (last,))
    driver.persisted()
    driver.ask(A, last.shard)
    driver.persisted()
    home = driver.coordinator.table.homes[last.shard]
    assert home.node == B
    driver.handle(ev.MessageReceived(B, msg.ShardStarted((home,))))
    stopped(driver, begin.homes)
    assert [last.shard] not in carried_out(driver, driver.persisted())
    assert driver.coordinator.table.homes[last.shard] == home


def test_shards_that_an_operator_stops_have_no_home_until_the_next_request() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.StopShards(("1", "unknown")))
    ack(driver, A, home)
    assert ack(driver, B, home) == [(home.node, msg.HandOff(1, (home,)))]
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
    assert driver.writes[-1].homes == {"1": None}


def test_shards_that_must_stop_are_reported_when_they_have_stopped() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.StopShards(("1", "unknown")))
    assert driver.stopped_shards == ["unknown"]
    ack(driver, A, home)
    ack(driver, B, home)
    assert driver.stopped_shards == ["unknown"]
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
    assert driver.stopped_shards == ["unknown", "1"]
    assert driver.coordinator.stopping == ()
    driver.persisted()
    assert "1" not in driver.coordinator.table.homes


def test_a_request_while_a_shard_stops_starts_it_again() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.StopShards(("1",)), ev.MessageReceived(A, msg.GetShardHome(("1",))))
    ack(driver, A, home)
    ack(driver, B, home)
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
    assert driver.stopped_shards == ["1"]
    [again] = [home for home in driver.writes[-1].homes.values() if home is not None]
    assert again[1] > home.fence


def test_a_shard_that_moves_when_it_must_stop_goes_nowhere() -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    assert driver.handle(ev.StopShards(("2",))) == []
    ack(driver, A, home)
    ack(driver, B, home)
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (home,))))
    assert driver.stopped_shards == ["2"]
    assert driver.writes[-1].homes == {"2": None}


def test_a_shard_that_must_stop_while_it_starts_stops_after_that() -> None:
    driver = ready()
    driver.ask(A, "1")
    driver.handle(ev.StopShards(("1",)))
    assert driver.stopped_shards == []
    sent = driver.persisted()
    home = driver.coordinator.table.homes["1"]
    assert (home.node, msg.HostShard(1, (home,))) in sent
    assert (home.node, msg.BeginHandOff(1, (home,))) in sent
    ack(driver, A, home)
    ack(driver, B, home)
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
    assert driver.stopped_shards == ["1"]


def test_a_shard_that_stops_by_itself_or_dies_counts_as_stopped() -> None:
    driver = ready()
    homes = {home.node: home for home in map(driver.home, "12")}
    driver.handle(ev.StopShards(("1", "2")))
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (homes[A],))))
    assert driver.stopped_shards == [homes[A].shard]
    driver.handle(ev.MembersChanged((A,)))
    assert driver.stopped_shards == [homes[A].shard, homes[B].shard]


def six_at_a(settings: ShardingSettings | None = None) -> CoordinatorDriver:
    """Six shards at A, and B has just joined."""
    driver = CoordinatorDriver(settings, live=(A,))
    driver.register(A)
    for shard in "123456":
        driver.home(shard)
    driver.handle(ev.MembersChanged((A, B)))
    driver.register(B)
    return driver


def test_B77_nothing_moves_for_balance_while_an_operator_has_paused_it() -> None:
    driver = six_at_a()
    driver.handle(Overrides(paused=True))
    assert driver.coordinator.rebalancing.why_not() == "an operator has paused it"
    assert driver.wait(60) == []
    assert driver.handle(ev.Rebalance()) == []
    driver.handle(ev.MessageReceived(A, msg.GracefulShutdownRequest(A)))
    assert len(driver.coordinator.forecasting(0, (A,))().moved) == 6
    begun = [m for _, m in driver.wait(1.0) if isinstance(m, msg.BeginHandOff)]
    assert driver.coordinator.rebalancing.moves_in_flight[0] == 6, (
        "what drains is no matter of balance"
    )
    assert begun == []


def test_B77_rebalancing_goes_on_after_a_pause() -> None:
    driver = six_at_a()
    driver.handle(Overrides(paused=True))
    driver.wait(60)
    begun = [m for to, m in driver.handle(Overrides()) if to == A]
    assert [type(message) for message in begun] == [msg.BeginHandOff]
    assert driver.coordinator.rebalancing.moves_in_flight == (3, 16)


def test_B77_a_pause_drops_moves_that_have_not_begun() -> None:
    driver = six_at_a(ShardingSettings(max_moves_in_flight=1))
    [begun] = [
        m for to, m in driver.wait(COALESCE_S) if to == A and isinstance(m, msg.BeginHandOff)
    ]
    driver.handle(Overrides(paused=True))
    for node in (A, B):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, begun.homes)))
    sent = driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, begun.homes)))
    sent += driver.persisted() + started(driver, B) + driver.wait(60)
    assert "BeginHandOff" not in {name for _, name in names(sent)}
    assert len(driver.coordinator.table.shards_at(B)) == 1, "what had begun is done"


@pytest.mark.parametrize(("bound", "begun"), [(0, 1), (2, 2), (100, 3)])
def test_B77_the_bound_on_moves_changes_at_run_time(bound: int, begun: int) -> None:
    driver = six_at_a(ShardingSettings(max_moves_in_flight=1))
    driver.handle(Overrides(moves=7, paused=True))
    driver.handle(Overrides(moves=bound))
    driver.wait(COALESCE_S)
    assert driver.coordinator.rebalancing.moves_in_flight == (begun, bound or 1)


def test_N10_the_moves_of_a_minute_are_bounded() -> None:
    driver = six_at_a(ShardingSettings(max_moves_per_minute=2, rebalance_interval=1e6))
    [first] = [
        m for to, m in driver.wait(COALESCE_S) if to == A and isinstance(m, msg.BeginHandOff)
    ]
    assert len(first.homes) == 2
    for node in (A, B):
        driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, first.homes)))
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, first.homes)))
    sent = driver.persisted() + started(driver, B) + driver.wait(59)
    assert "BeginHandOff" not in {name for _, name in names(sent)}, "its turn has not come"
    assert driver.coordinator.rebalancing.deadline() == driver.now + 1
    [second] = [m for to, m in driver.wait(1) if to == A and isinstance(m, msg.BeginHandOff)]
    assert len(second.homes) == 1
    assert not set(second.homes) & set(first.homes)


def test_N10_a_leaving_region_is_not_slowed_by_the_bound_of_a_minute() -> None:
    driver = six_at_a(ShardingSettings(max_moves_per_minute=1))
    driver.wait(COALESCE_S)
    driver.handle(ev.MessageReceived(A, msg.GracefulShutdownRequest(A)))
    assert driver.coordinator.rebalancing.moves_in_flight[0] == 6


def some_nodes(count: int) -> tuple[NodeId, ...]:
    return tuple(NodeId("n", port, port) for port in range(1, count + 1))


def shard_count_check(driver: CoordinatorDriver) -> list[str]:
    return [note for note in driver.notes if note.startswith("too_")]


@pytest.mark.parametrize(
    ("shards", "nodes", "sent"),
    [
        (2, 2, []),
        (2, 3, ["too_few_shards"]),
        (2000, 2, []),
        (2001, 2, ["too_many_shards"]),
        (2001, 3, []),
    ],
)
def test_S2_18_S2_19_too_few_or_too_many_shards_are_noted_once(
    shards: int, nodes: int, sent: list[str]
) -> None:
    driver = CoordinatorDriver(ShardingSettings(shards=shards), live=some_nodes(nodes))
    driver.register(*some_nodes(nodes))
    driver.wait(15)
    assert shard_count_check(driver) == [], "a cluster that is starting gets more nodes"
    driver.wait(600)
    assert shard_count_check(driver) == sent


def test_S2_18_S2_19_they_are_noted_again_after_a_change() -> None:
    driver = CoordinatorDriver(ShardingSettings(shards=2), live=some_nodes(3))
    for nodes in (3, 2, 3, 4):
        driver.handle(ev.MembersChanged(some_nodes(nodes)))
        driver.register(*some_nodes(nodes))
        driver.wait(60)
    assert shard_count_check(driver) == ["too_few_shards"] * 2


def test_S2_18_S2_19_a_shard_function_of_the_application_gives_any_number() -> None:
    some = ShardCountCheck(0)
    assert [note for now in range(100) for note in some.notes(200, 20, float(now))] == []
    notes = [note for now in range(100) for note in some.notes(2, 2001, float(now))]
    assert [note.kind for note in notes] == ["too_many_shards"]
    assert "2001 shards for 2 nodes" in notes[0].detail


def test_an_epoch_is_claimed_above_the_store_and_above_gossip() -> None:
    for stored, floor, expected in ((0, 0, 1), (4, 0, 5), (4, 9, 10)):
        coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
        coordinator.handle(ev.Start(floor), 0.0)
        table = StoredTable(stored, LAYOUT, {}) if stored else None
        assert coordinator.handle(ev.TableLoaded(table), 0.0) == [ev.ClaimEpoch(expected, LAYOUT)]


def test_a_coordinator_that_knows_the_last_epoch_claims_none_and_tries_again() -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    coordinator.handle(ev.Start(EPOCH_MAX), 0.0)
    [note] = coordinator.handle(ev.TableLoaded(None), 0.0)
    assert isinstance(note, ev.Note)
    assert "is the last epoch" in note.detail
    coordinator.tick(0.0)
    [again] = coordinator.tick(coordinator.deadline() or 0.0)
    assert again == note
    last = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    last.handle(ev.Start(EPOCH_MAX - 1), 0.0)
    assert last.handle(ev.TableLoaded(None), 0.0) == [ev.ClaimEpoch(EPOCH_MAX, LAYOUT)]


def test_a_refused_claim_goes_higher_and_an_unanswered_one_stays() -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    coordinator.handle(ev.Start(), 0.0)
    coordinator.handle(ev.TableLoaded(None), 0.0)
    coordinator.handle(ev.StoreFailed("slow"), 1.0)
    coordinator.tick(1.0)
    assert coordinator.deadline() == 1.5
    assert coordinator.tick(1.5) == [ev.ClaimEpoch(1, LAYOUT)]
    coordinator.handle(ev.EpochRefused(6), 2.0)
    coordinator.tick(2.0)
    assert coordinator.tick(coordinator.deadline() or 0.0) == [ev.ClaimEpoch(7, LAYOUT)]


@pytest.mark.parametrize("setting", [2.5, 5.0, 10.0])
def test_S2_61_the_waits_are_those_that_the_setting_says(setting: float) -> None:
    meaning = dict(options())["sharding.coordinator_failure_backoff"].meaning
    assert "a tenth" in meaning
    assert "5 times" in meaning
    settings = ShardingSettings(coordinator_failure_backoff=setting)
    coordinator = Coordinator("t", A, LAYOUT, settings, LeastShard())
    coordinator.handle(ev.Start(), 0.0)
    now, waits = 0.0, []
    for _ in range(8):
        coordinator.handle(ev.StoreFailed("slow"), now)
        coordinator.tick(now)
        due = coordinator.deadline()
        assert due is not None
        waits.append(due - now)
        now = due
        assert coordinator.tick(now) == [ev.LoadTable()]
    factors = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert waits == pytest.approx([factor * setting for factor in factors])


def test_a_prepared_coordinator_claims_at_once_and_answers_earlier_requests() -> None:
    coordinator = Coordinator("t", B, LAYOUT, ShardingSettings(), LeastShard())
    assert coordinator.handle(ev.Prepare(3), 0.0) == [ev.LoadTable()]
    assert coordinator.handle(ev.TableLoaded(StoredTable(3, LAYOUT, {"1": (A, 1)})), 0.0) == []
    coordinator.handle(ev.MembersChanged((B,)), 0.0)
    coordinator.handle(ev.MessageReceived(B, msg.Register(B, False, LAYOUT, ())), 0.0)
    coordinator.handle(ev.MessageReceived(B, msg.GetShardHome(("1",))), 0.0)
    assert coordinator.tick(0.0) == []
    assert coordinator.state is CoordinatorState.READY
    assert coordinator.deadline() is None
    assert coordinator.handle(ev.Start(4), 1.0) == [ev.ClaimEpoch(5, LAYOUT)]
    coordinator.handle(ev.EpochClaimed(StoredTable(5, LAYOUT, {"1": (A, 1)})), 1.0)
    sent = coordinator.tick(1.0)
    assert {type(e.message) for e in sent if isinstance(e, ev.Send)} == {msg.RegisterAck, msg.Wait}
    assert any(isinstance(e, ev.Persist) and "1" in e.homes for e in sent)


@pytest.mark.parametrize("loaded_first", [True, False])
def test_a_start_during_the_load_claims_after_it(loaded_first: bool) -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    events: list[ev.CoordinatorEvent] = [ev.TableLoaded(None), ev.Start(6)]
    coordinator.handle(ev.Prepare(2), 0.0)
    effects = [
        e for event in events[:: 1 if loaded_first else -1] for e in coordinator.handle(event, 0.0)
    ]
    assert effects == [ev.ClaimEpoch(7, LAYOUT)]


def test_a_prepared_coordinator_detects_a_lost_table() -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    coordinator.handle(ev.Prepare(2), 0.0)
    coordinator.handle(ev.TableLoaded(StoredTable(2, LAYOUT, {})), 0.0)
    coordinator.handle(ev.Start(2), 0.0)
    assert not coordinator._epoch_claim.table_lost
    lost = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    lost.handle(ev.Prepare(2), 0.0)
    lost.handle(ev.TableLoaded(None), 0.0)
    lost.handle(ev.Start(2), 0.0)
    assert lost._epoch_claim.table_lost


def test_B97_a_retiring_coordinator_finishes_its_write_and_starts_nothing_new() -> None:
    driver = ready()
    driver.ask(B, "1")
    assert driver.handle(ev.Retire()) == []
    assert driver.ask(B, "2") == []
    assert not driver.stopped
    sent = driver.persisted()
    home = (
        Home("1", B, FENCE) if driver.writes[-1].homes["1"] == (B, FENCE) else Home("1", A, FENCE)
    )
    assert (home.node, msg.HostShard(1, (home,))) in sent
    assert (B, msg.ShardHomes(1, (home,))) in sent
    assert driver.stopped == "handed over"
    assert len(driver.writes) == 1
    assert driver.handle(ev.MessageReceived(B, msg.GetShardHome(("3",)))) == []


def test_B97_a_retiring_coordinator_without_a_write_stops_at_once() -> None:
    driver = ready()
    driver.home("1")
    driver.handle(ev.Retire())
    assert driver.stopped == "handed over"
    assert driver.coordinator.deadline() is None


def test_B97_a_retiring_coordinator_does_not_repeat_a_failed_write() -> None:
    driver = ready()
    driver.ask(B, "1")
    driver.handle(ev.Retire())
    driver.handle(ev.PersistFailed(driver.writes[-1].op_id, False))
    assert driver.stopped == "handed over"
    assert len(driver.writes) == 1


def test_B97_a_retiring_coordinator_has_no_deadline_but_its_write() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.StopShards(("1",)))
    driver.ask(home.node, "2")
    driver.handle(ev.Retire())
    assert driver.coordinator.deadline() is None


@pytest.mark.parametrize("events", [[], [ev.Prepare()], [ev.Start(), ev.TableLoaded(None)]])
def test_a_coordinator_that_does_not_rule_yet_retires_at_once(
    events: list[ev.CoordinatorEvent],
) -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    for event in events:
        coordinator.handle(event, 0.0)
    [stop] = coordinator.handle(ev.Retire(), 0.0)
    assert isinstance(stop, ev.Stop)
    assert coordinator.handle(ev.Retire(), 0.0) == []


def test_a_stored_table_of_another_layout_is_not_touched() -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    coordinator.handle(ev.Start(), 0.0)
    [stop] = coordinator.handle(ev.TableLoaded(StoredTable(1, "crc32/9", {"1": (A, 1)})), 0.0)
    assert isinstance(stop, ev.Stop)
    assert "crc32/9" in stop.reason
    assert LAYOUT in stop.reason
    assert coordinator.state is CoordinatorState.STOPPED


def test_the_grace_is_longer_after_the_store_lost_the_table() -> None:
    coordinator = Coordinator("t", A, LAYOUT, ShardingSettings(), LeastShard())
    coordinator.handle(ev.Start(7), 0.0)
    coordinator.handle(ev.TableLoaded(None), 0.0)
    coordinator.handle(ev.EpochClaimed(StoredTable(8, LAYOUT, {})), 0.0)
    coordinator.handle(ev.MembersChanged((A, B)), 0.0)
    coordinator.handle(ev.MessageReceived(A, msg.Register(A, False, LAYOUT, ())), 0.0)
    coordinator.handle(ev.MessageReceived(A, msg.GetShardHome(("1",))), 0.0)
    for now, expected in ((0.0, False), (25.0, False), (30.0, True)):
        writes = [e for e in coordinator.tick(now) if isinstance(e, ev.Persist)]
        assert any(write.homes for write in writes) is expected
        for write in writes:
            coordinator.handle(ev.Persisted(write.op_id), now)


def test_an_outbox_gathers_messages_orders_and_splits_them() -> None:
    outbox = Outbox(A)
    homes = [Home(str(i), B, i + 1) for i in range(CHUNK + 1)]
    outbox.add(B, HomeMessage.SHARD_HOMES, homes)
    outbox.add(B, HomeMessage.HOST_SHARD, homes[:1])
    outbox.wait(B, "x", "why")
    outbox.add(B, HomeMessage.REGISTER_ACK, ())
    sent = [send.message for send in outbox.drain(3)]
    assert [type(message).__name__ for message in sent] == [
        "RegisterAck",
        "HostShard",
        "ShardHomes",
        "ShardHomes",
        "Wait",
    ]
    assert not outbox
    assert outbox.drain(3) == []


def test_an_early_registration_from_before_the_shutdown_is_dropped() -> None:
    """It had been kept while a write was under way."""
    registry = Registry(1)
    registry.update(ev.MembersChanged((A,)))
    registry.keep_early(msg.Register(A, False, LAYOUT, ()))
    registry.register(A, proxy=True)
    assert registry.take_early() == []


# Two faults at once, and the state that a takeover reads


def adopting(*nodes: NodeId) -> tuple[CoordinatorDriver, Home]:
    """The store has lost the table, and B reports a shard: its home is being written."""
    driver = CoordinatorDriver(live=(A, *nodes))
    adopted = Home("1", B, 70)
    driver.handle(ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (adopted,))))
    driver.register(A, *(node for node in nodes if node != B))
    assert driver.writes[-1].homes == {"1": (B, 70)}
    return driver, adopted


def test_an_adopted_home_whose_node_dies_while_it_is_written_gets_a_new_home() -> None:
    driver, adopted = adopting(B)
    driver.handle(ev.MembersChanged((A,)))
    assert all(to == A for to, _ in driver.persisted())
    [(shard, home)] = driver.writes[-1].homes.items()
    assert (shard, home) == ("1", (A, FENCE))
    assert (A, msg.HostShard(1, (Home("1", A, FENCE),))) in driver.persisted()
    assert adopted.fence < FENCE


def test_a_region_that_shuts_down_is_not_out_while_its_adopted_home_is_written() -> None:
    driver, adopted = adopting(B)
    bye = ev.MessageReceived(B, msg.GracefulShutdownRequest(B))
    assert driver.handle(bye) == []
    assert B not in driver.coordinator.table.proxies
    begun = driver.persisted()
    assert (A, msg.BeginHandOff(1, (adopted,))) in begun
    assert (B, msg.RegionStopped(B)) not in begun
    ack(driver, A, adopted)
    ack(driver, B, adopted)
    driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, (adopted,))))
    assert (B, msg.RegionStopped(B)) in driver.persisted()


def test_homes_of_a_lost_table_keep_their_fences() -> None:
    """Gossip shows epoch 5, the store is empty: its entities have lost their fences, too."""
    driver = CoordinatorDriver(floor=5)
    running = Home("1", B, 4 << 32)
    driver.handle(ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (running,))))
    driver.register(A)
    assert driver.writes[-1].homes == {"1": (B, 4 << 32)}


def test_an_outdated_home_restarts_where_it_is_under_a_new_fence() -> None:
    """Epoch 5 was of another cluster, whose node C had the shard."""
    stored = StoredTable(5, LAYOUT, {"1": (C, 5 << 32)})
    driver = CoordinatorDriver(stored=stored)
    outdated = ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (Home("1", B, 4 << 32),)))
    assert driver.handle(outdated) == [(B, msg.RegisterAck(6, A, ()))]
    renewed = Home("1", B, 6 << 32)
    assert driver.writes[-1].homes == {"1": (B, 6 << 32)}
    driver.handle(outdated)
    assert (B, msg.HostShard(6, (renewed,))) in driver.persisted()
    assert dict(driver.coordinator.table.homes) == {"1": renewed}
    assert "renewed" in driver.notes


def test_fences_of_one_write_are_above_every_fence_that_it_adopts() -> None:
    driver = CoordinatorDriver()
    reported = Home("2", A, 99 << 32)
    driver.handle(
        ev.MessageReceived(A, msg.Register(A, False, LAYOUT, (reported,))),
        ev.MessageReceived(B, msg.Register(B, False, LAYOUT, ())),
        ev.MessageReceived(A, msg.GetShardHome(("3",))),
    )
    fences = {shard: home[1] for shard, home in driver.writes[-1].homes.items() if home}
    assert fences == {"2": reported.fence, "3": reported.fence + 1}


def test_an_acknowledgement_of_an_earlier_move_does_not_count_for_the_next() -> None:
    driver = CoordinatorDriver(live=(A,))
    first = move(driver)
    ack(driver, A, first)
    driver.wait(ShardingSettings().begin_handoff_timeout)
    driver.handle(ev.MessageReceived(A, msg.ShardStopped(A, (first,))))
    driver.persisted()
    second = driver.coordinator.table.homes["2"]
    assert (second.node, second.fence > first.fence) == (A, True)
    started(driver, A)
    driver.handle(ev.StopShards(("2",)))
    assert ack(driver, A, second) == []
    assert ack(driver, B, first) == [], "B may still send to the home of the second move"
    assert ack(driver, B, second) == [(A, msg.HandOff(1, (second,)))]


def test_a_remembered_shard_that_stops_by_itself_gets_a_home_without_a_request() -> None:
    driver = CoordinatorDriver(ShardingSettings(remember=True))
    driver.register(A, B)
    home = driver.home("1")
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
    again = driver.writes[-1].homes["1"]
    assert again is not None
    assert again[1] > home.fence


@pytest.mark.parametrize("timeout", [1.0, 2.0, 7.5])
@pytest.mark.parametrize(("floor", "patience"), [(0, 1.0), (7, LOSS_PATIENCE)])
def test_S2_75_a_takeover_waits_for_missing_regions_as_long_as_the_setting_says(
    timeout: float, floor: int, patience: float
) -> None:
    """The grace is longer if the store has lost the table: only regions know it then."""
    settings = ShardingSettings(waiting_for_state_timeout=timeout, rebalance_interval=1e6)
    driver = CoordinatorDriver(settings, floor=floor)
    driver.register(A)
    reason = "regions are registering with a new coordinator"
    assert driver.ask(A, "1") == [(A, msg.Wait(driver.coordinator.epoch, ("1",), reason))]
    driver.wait(timeout * patience - 0.01)
    assert driver.writes == []
    driver.wait(0.01)
    assert list(driver.writes[-1].homes) == ["1"]


def test_S2_75_a_takeover_that_every_region_has_reported_to_waits_no_longer() -> None:
    driver = CoordinatorDriver(ShardingSettings(waiting_for_state_timeout=60.0))
    driver.register(A)
    driver.ask(A, "1")
    assert driver.writes == []
    driver.register(B)
    assert list(driver.writes[-1].homes) == ["1"]


def test_a_silent_region_keeps_its_shard_while_there_is_no_other() -> None:
    driver = CoordinatorDriver(live=(A,))
    driver.register(A)
    driver.ask(A, "1")
    driver.persisted()
    home = driver.coordinator.table.homes["1"]
    repeats = driver.wait((TRIES + 2) * ShardingSettings().shard_start_timeout)
    assert names(repeats) == [(A, "HostShard")] * (TRIES + 2)
    assert driver.coordinator.state_of("1") == "starting"
    assert driver.coordinator.table.homes["1"] == home


@pytest.mark.parametrize("setting", [1.0, 3.0, 10.0])
def test_S2_61_failed_writes_are_repeated_at_the_intervals_of_the_setting(setting: float) -> None:
    driver = CoordinatorDriver(ShardingSettings(coordinator_failure_backoff=setting))
    driver.register(A, B)
    driver.ask(A, "1")
    for factor in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        attempts = len(driver.writes)
        driver.handle(ev.PersistFailed(driver.writes[-1].op_id, False))
        driver.wait(factor * setting * 0.99)
        assert len(driver.writes) == attempts
        driver.wait(factor * setting * 0.02)
        assert len(driver.writes) == attempts + 1


@pytest.mark.parametrize(("role", "expected"), [("", 3), ("db", 2), ("other", 1)])
def test_S2_34_S2_35_a_type_has_the_minimum_of_its_role_or_of_the_cluster(
    role: str, expected: int
) -> None:
    settings = ClusterSettings(min_members=3, role_min_members={"db": 2})
    assert cluster_minimum(settings, role) == expected


def versions_of(*nodes: NodeId) -> ev.MembersChanged:
    """These members may host the type."""
    return ev.MembersChanged(nodes, versions=dict.fromkeys(nodes, "1.0"))


def test_S2_34_no_shard_gets_a_home_before_the_minimum_of_the_cluster_has_registered() -> None:
    driver = CoordinatorDriver(live=(A, B, C), cluster_minimum=3)
    driver.handle(versions_of(A, B, C))
    driver.register(A, B)
    driver.wait(60)
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), "2 of 3 regions registered"))]
    driver.register(C)
    assert list(driver.writes[-1].homes) == ["1"]


def test_S2_34_fewer_members_that_may_host_the_type_are_enough() -> None:
    """C does not have the type, or the type's role: another application, or an older version."""
    driver = CoordinatorDriver(live=(A, B, C), cluster_minimum=3)
    driver.handle(versions_of(A, B))
    driver.register(A)
    driver.wait(60)
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), "1 of 2 regions registered"))]
    driver.register(B)
    assert list(driver.writes[-1].homes) == ["1"]


def test_while_all_regions_are_proxies_the_reason_is_that_none_may_take_shards() -> None:
    """As after a hand-over among nodes that all leave: each region has moved its shards away."""
    driver = CoordinatorDriver(live=(A, B))
    driver.handle(versions_of(A, B))
    driver.register(A, B, proxy=True)
    driver.wait(60)
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), msg.NO_REGION))]


def test_S2_34_a_proxy_is_no_member_that_may_host() -> None:
    driver = CoordinatorDriver(live=(A, B), cluster_minimum=2)
    driver.handle(versions_of(A, B))
    driver.register(A)
    driver.register(B, proxy=True)
    driver.wait(2.0)
    driver.ask(A, "1")
    assert list(driver.writes[-1].homes) == ["1"]


def test_S2_34_a_member_that_ends_is_not_waited_for() -> None:
    driver = CoordinatorDriver(live=(A, B), cluster_minimum=2)
    driver.handle(versions_of(A, B))
    driver.register(A)
    driver.wait(60)
    driver.ask(A, "1")
    assert not driver.writes
    driver.handle(versions_of(A))
    assert list(driver.writes[-1].homes) == ["1"]


def test_S2_34_the_minimum_of_a_type_counts_whatever_the_members_are() -> None:
    driver = CoordinatorDriver(ShardingSettings(min_members=2), cluster_minimum=1)
    driver.handle(versions_of(A))
    driver.register(A)
    driver.wait(60)
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), "1 of 2 regions registered"))]


def test_proxies_do_not_count_for_the_minimum_of_regions() -> None:
    driver = CoordinatorDriver(ShardingSettings(min_members=2))
    driver.register(A)
    driver.register(B, proxy=True)
    driver.wait(2.0)
    reason = "1 of 2 regions registered"
    assert driver.ask(A, "1") == [(A, msg.Wait(1, ("1",), reason))]


# Instances


def pair_of_instances(count: int = 2) -> CoordinatorDriver:
    driver = CoordinatorDriver(instances=Instances(exact=count))
    sent = driver.register(A, B)
    assert [m for m in sent if isinstance(m[1], msg.InstanceCount)] == [
        (node, msg.InstanceCount(1, 2)) for node in (A, B)
    ]
    return driver


def test_S3_47_a_request_for_one_row_gives_homes_to_all_of_its_shard() -> None:
    driver = pair_of_instances()
    driver.ask(A, "7~1")
    assert {row: node for row, (node, _) in driver.writes[-1].homes.items()} == {"7~1": A, "7~2": B}
    driver.persisted()
    assert (A, msg.ShardHomes(1, (Home("7~2", B, FENCE + 1),))) in driver.ask(A, "7~2")


def test_a_row_without_a_place_waits_with_the_reason() -> None:
    driver = pair_of_instances()
    driver.ask(A, "7~1")
    driver.persisted()
    driver.handle(ev.MembersChanged((A,)))
    driver.wait(1.0)
    writes = len(driver.writes)
    why = "each node that may host it hosts another instance"
    assert driver.ask(A, "7~2") == [(A, msg.Wait(1, ("7~2",), why))]
    assert driver.ask(A, "7~3") == [(A, msg.Wait(1, ("7~3",), "its type has 2 instances"))]
    assert list(driver.coordinator.table.homes) == ["7~1"]
    assert all("7~2" not in write.homes for write in driver.writes[writes:])


def test_S3_48_fewer_nodes_mean_fewer_instances_after_a_while() -> None:
    driver = pair_of_instances()
    driver.ask(A, "7~1")
    driver.persisted()
    driver.handle(ev.MembersChanged((A,)))
    sent = driver.wait(SHRINK_AFTER_S + 1.0)
    assert (A, msg.InstanceCount(1, 1)) in sent
    assert driver.writes[-1].homes == {"7~2": None}, "the store forgets the row of the dead node"
    driver.persisted()
    driver.handle(ev.MembersChanged((A, C)))
    sent = driver.register(C)
    assert (C, msg.InstanceCount(1, 2)) in sent
    assert driver.writes[-1].homes["7~2"][0] == C


def test_a_row_that_the_stored_table_lacks_gets_a_home_without_a_request() -> None:
    """The coordinator before may have ended between two instances of a shard."""
    homes = {"7~1": (A, FENCE), "8~1": (B, FENCE + 1), "8~2": (A, FENCE + 2)}
    stored = StoredTable(1, LAYOUT, homes)
    driver = CoordinatorDriver(stored=stored, instances=Instances(exact=2))
    hosted = {
        A: (Home("7~1", A, FENCE), Home("8~2", A, FENCE + 2)),
        B: (Home("8~1", B, FENCE + 1),),
    }
    driver.handle(
        *(ev.MessageReceived(n, msg.Register(n, False, LAYOUT, row)) for n, row in hosted.items())
    )
    assert {row: home and home[0] for row, home in driver.writes[-1].homes.items()} == {"7~2": B}


def test_instances_that_an_operator_stops_stay_stopped_until_a_message_comes() -> None:
    driver = pair_of_instances()
    driver.ask(A, "7~1")
    driver.persisted()
    first, second = (driver.coordinator.table.homes[row] for row in ("7~1", "7~2"))
    driver.handle(*(ev.MessageReceived(h.node, msg.ShardStarted((h,))) for h in (first, second)))
    driver.handle(ev.StopShards(("7~1", "7~2")))
    for home in (first, second):
        for node in (A, B):
            driver.handle(ev.MessageReceived(node, msg.BeginHandOffAck(node, (home,))))
        driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))
        driver.persisted()
    assert driver.coordinator.table.homes == {}
    assert set(driver.stopped_shards) == {"7~1", "7~2"}
    driver.wait(30.0)
    assert driver.coordinator.table.homes == {}
    driver.ask(A, "7~2")
    assert set(driver.writes[-1].homes) == {"7~1", "7~2"}


def test_S3_47_rows_go_to_distinct_zones_first() -> None:
    driver = CoordinatorDriver(instances=Instances(exact=2), live=(A, B, C))
    driver.handle(ev.MembersChanged((A, B, C), zones={A: "west", B: "west", C: "east"}))
    driver.register(A, B, C)
    driver.ask(A, *(f"{shard}~1" for shard in range(6)))
    by_row: dict[str, list[NodeId]] = {}
    for row, home in driver.writes[-1].homes.items():
        assert home is not None
        by_row.setdefault(row[0], []).append(home[0])
    assert [nodes.count(C) for nodes in by_row.values()] == [1] * 6


def test_a_row_that_is_handed_on_does_not_join_another_of_its_shard() -> None:
    chosen = ShardingSettings(handoff="forward")
    driver = CoordinatorDriver(chosen, instances=Instances(exact=2), live=(A, B, C))
    driver.register(A, B, C)
    driver.ask(A, *(f"{shard}~1" for shard in range(6)))
    driver.persisted()
    homes = driver.coordinator.table.homes
    for home in homes.values():
        driver.handle(ev.MessageReceived(home.node, msg.ShardStarted((home,))))
    driver.handle(ev.MembersChanged((A, B, C), unfit=(B,), draining=(B,)))
    moves = list(driver.coordinator._direct.in_flight())
    assert moves, "the shards of B are on their way"
    for move in moves:
        shard, instance = move.shard.split("~")
        assert homes[f"{shard}~{3 - int(instance)}"].node != move.target, move


def test_a_row_above_N_that_a_region_reports_stops() -> None:
    driver = pair_of_instances()
    hosted = (Home("7~3", B, FENCE + 9),)
    driver.handle(ev.MessageReceived(B, msg.Register(B, False, LAYOUT, hosted)))
    sent = driver.persisted()
    begun = [m.homes for _, m in sent if isinstance(m, msg.BeginHandOff)]
    assert begun == [hosted] * 2
    for node in (A, B):
        ack(driver, node, *hosted)
    driver.handle(ev.MessageReceived(B, msg.ShardStopped(B, hosted)))
    driver.persisted()
    assert dict(driver.coordinator.table.homes) == {}


def test_a_turn_that_changes_nothing_looks_at_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pair_of_instances()
    driver.ask(A, *(f"{shard}~1" for shard in range(100)))
    driver.persisted()
    driver.turn()
    looked: list[str] = []
    exists = InstanceRows.exists
    monkeypatch.setattr(
        InstanceRows, "exists", lambda self, row: (looked.append(row), exists(self, row))[1]
    )
    driver.handle(ev.MessageReceived(A, msg.ShardLoads(A, {})))
    driver.wait(1.0)
    assert looked == []
    driver.ask(A, "7~1")
    assert set(looked) <= {"7~1"}


def test_a_shard_that_an_unknown_move_gave_to_a_node_that_is_gone_gets_another_home() -> None:
    """The store has lost the move, and its new home has died since."""
    driver = CoordinatorDriver(ShardingSettings(handoff="drop"))
    driver.register(A, B)
    home = driver.home("2")
    lost = msg.ShardMove(home, Home("2", C, home.fence + 1))
    writes = len(driver.writes)
    driver.handle(ev.MessageReceived(home.node, msg.ShardMoved(home.node, (lost,))))
    assert len(driver.writes) == writes + 1
    node, fence = driver.writes[-1].homes["2"] or (None, 0)
    assert node in (A, B)
    assert fence > home.fence


def test_a_shard_that_an_unknown_move_gave_to_a_living_node_lives_there() -> None:
    driver = CoordinatorDriver(ShardingSettings(handoff="drop"))
    driver.register(A, B)
    home = driver.home("2")
    new = Home("2", B, home.fence + 1)
    driver.handle(ev.MessageReceived(A, msg.ShardMoved(A, (msg.ShardMove(home, new),))))
    assert driver.writes[-1].homes["2"] == (B, new.fence)
