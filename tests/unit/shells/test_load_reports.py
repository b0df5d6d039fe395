"""Reports of load: the measurements, their times, and the coordinator that gets them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding.instances import Instances
from shardbus.sharding.messages import ShardLoads
from shardbus.shells.load_reports import REPORTS, LoadReports
from shardbus.shells.load_sampling import LoadSampling
from shardbus.transport.asks import CoarseClock

ME, COORDINATOR = NodeId("10.0.0.1", 1, 1), NodeId("10.0.0.2", 1, 2)
INTERVAL = 10.0
DUE = int(1000 * INTERVAL / REPORTS) // CoarseClock.TICK_MS


def region(
    name: str, load: str = "messages", within: Any = None, instances: Instances | None = None
) -> Any:
    """A region of which the reports use only these parts. An entity is named by its shard."""
    made: Any = SimpleNamespace(
        name=name,
        hosts=True,
        inner=[],
        coordinator=COORDINATOR,
        entity_type=SimpleNamespace(interface=SimpleNamespace(instances=instances)),
        settings=ShardingSettings(load=load, rebalance_interval=INTERVAL),
        sampling=LoadSampling(lambda entity_id: entity_id[0], float),
        router=SimpleNamespace(region=SimpleNamespace(registered=True)),
        host=SimpleNamespace(
            counts=SimpleNamespace(accepted=0),
            shards={"a": SimpleNamespace(live=3), "b": SimpleNamespace(live=1)},
            runner=SimpleNamespace(
                mailbox_limits=SimpleNamespace(waiting_by_shard=lambda: {"b": 7})
            ),
        ),
    )
    made.table = made if within is None else within
    if within is not None:
        within.inner.append(made)
    return made


class Reporter:
    """A node with these types, on a clock that the test moves."""

    def __init__(self, *regions: Any) -> None:
        self.now, self.tick, self.cpu = 0.0, 0, 0.0
        self.sent: list[tuple[NodeId, str, Any]] = []
        self.resident = 100
        environment: Any = SimpleNamespace(
            cpu_time=lambda: self.cpu,
            resident_bytes=lambda: self.resident,
            memory_limit=lambda: 1000,
        )
        self.regions = {region.name: region for region in regions}
        self.reports = LoadReports(
            ME, self.regions, environment, lambda: self.now, lambda *sent: self.sent.append(sent)
        )

    def switch(self, *names: str) -> None:
        self.reports.switch({name: self.regions[name].settings for name in names})

    def handle(self, name: str, ids: str) -> None:
        """Let a type handle messages, one after another."""
        region_ = self.regions[name]
        for entity_id in ids:
            region_.host.counts.accepted += 1
            if region_.host.counts.accepted >= region_.sampling.marks.mark:
                region_.sampling.sample(region_.host.counts.accepted, entity_id)

    def window(self) -> list[ShardLoads]:
        """Let the time of one report pass; returns the sent reports."""
        self.now += INTERVAL / REPORTS
        self.tick += DUE
        self.sent.clear()
        self.reports.on_tick(self.tick)
        return [message for _, _, message in self.sent]


def test_S3_20_a_type_by_load_reports_its_shards_to_its_coordinator() -> None:
    node = Reporter(region("page"))
    node.switch("page")
    node.window()
    node.handle("page", "aaaaab" * 10)
    assert node.window() == [
        ShardLoads(ME, {"a": 10.0, "b": 2.0}, "messages", 1.0, 12.0, waiting=7.0)
    ]
    assert [sent[:2] for sent in node.sent] == [(COORDINATOR, "page")]


@pytest.mark.parametrize(
    ("load", "loads"), [("memory", {"a": 3.0, "b": 1.0}), ("mailbox", {"b": 7.0})]
)
def test_S3_20_entities_and_mailboxes_are_counted_and_the_messages_named_beside(
    load: str, loads: dict[str, float]
) -> None:
    node = Reporter(region("page", load))
    node.switch("page")
    node.window()
    node.handle("page", "a" * 50)
    [report] = node.window()
    assert (report.loads, report.kind, report.rate) == (loads, load, 10.0)


def test_S3_20_the_work_of_other_types_is_what_a_node_cannot_spare() -> None:
    node = Reporter(region("page", "time"), region("other"))
    node.switch("page")
    assert [region_.sampling.timed for region_ in node.regions.values()] == [True, True]
    node.window()
    node.cpu += 2.0  # of 5 s, all outside this type's handlers
    node.handle("other", "a" * 500)
    [report] = node.window()
    assert report.spare == pytest.approx(0.6)


def test_memory_that_the_process_had_at_its_start_is_not_the_types() -> None:
    node = Reporter(region("page", "memory"))
    node.switch("page")
    node.window()
    node.resident = 600
    [report] = node.window()
    assert report.spare == pytest.approx(0.9)


def test_what_lives_within_a_type_counts_for_it() -> None:
    order = region("order")
    item = region("item", within=order)
    node = Reporter(order, item)
    node.switch("order")
    node.window()
    node.handle("order", "a" * 5)
    node.handle("item", "a" * 20)
    assert node.window() == [ShardLoads(ME, {"a": 5.0}, "messages", 1.0, 5.0, waiting=14.0)]


@pytest.mark.parametrize("reason", ["proxy", "unregistered", "no coordinator", "early"])
def test_nothing_is_sent_before_it_can_be(reason: str) -> None:
    page = region("page")
    node = Reporter(page)
    node.switch("page")
    node.window()
    page.hosts = reason != "proxy"
    page.router.region.registered = reason != "unregistered"
    page.coordinator = None if reason == "no coordinator" else COORDINATOR
    node.now += 1.0
    node.tick += DUE - 1 if reason == "early" else DUE
    node.reports.on_tick(node.tick)
    assert node.sent == []


def test_types_that_are_not_balanced_by_load_are_not_sampled() -> None:
    node = Reporter(region("page"), region("other"))
    node.switch("page")
    assert [region_.sampling.on for region_ in node.regions.values()] == [True, False]
    assert not node.regions["page"].sampling.timed


def test_S3_49_handlers_are_timed_if_the_instances_follow_them() -> None:
    node = Reporter(region("page", instances=Instances(busy_per_instance=0.5)), region("other"))
    node.switch("page")
    assert [region_.sampling.timed for region_ in node.regions.values()] == [True, True]
    node.window()
    [report] = node.window()
    assert (report.kind, report.busy, report.waiting) == ("messages", 0.0, 7.0)
    node = Reporter(region("page", instances=Instances(per_instance=5.0)))
    node.switch("page")
    node.window()
    [report] = node.window()
    assert (node.regions["page"].sampling.timed, report.busy) == (False, None)


def test_S3_49_what_the_user_expects_is_reported_and_a_failure_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Any] = [100, -1, -1, 30.0, -1]
    instances = Instances(per_instance=5.0, expected=lambda: answers.pop(0))
    node = Reporter(region("page", instances=instances))
    node.switch("page")
    node.window()
    assert [node.window()[0].expected for _ in range(5)] == [100, 0.0, 0.0, 30.0, 0.0]
    assert [line.getMessage() for line in caplog.records] == [
        "page: instances: expected is -1, no number from 0"
    ] * 2
