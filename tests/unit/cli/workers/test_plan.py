"""The ports and arguments of each worker of a unit, its output lines, and the merged metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardbus.config.loading import from_assignments, load
from shardbus.errors import ConfigError
from shardbus_cli.children.prefixed_output import marked
from shardbus_cli.workers.exposition import merged
from shardbus_cli.workers.plan import WorkerPlan, plan_of


def planned(*assignments: str, workers: int = 3) -> WorkerPlan:
    settings = load(from_assignments(assignments))
    return plan_of(settings, workers, ["node", "start", "app:bus"], "json")


def told(plan: WorkerPlan, number: int, *, joins: bool = True) -> Any:
    """The settings that a worker ends up with."""
    words = plan.command(number, 9, joins=joins)
    assert words[:3] == ["node", "start", "app:bus"]
    assert words[-2:] == ["--leash-fd", "9"]
    assignments = words[3:-2]
    assert set(assignments[::2]) == {"--set"}
    return load(from_assignments(assignments[1::2]))


def test_ports_are_two_apart_and_http_is_behind_that_of_the_unit() -> None:
    plan = planned()
    ports = [(w.port, w.gossip_port, w.http_port) for w in plan.workers]
    assert ports == [(7355, 7356, 8559), (7357, 7358, 8560), (7359, 7360, 8561)]
    settings = told(plan, 2)
    assert (settings.node.port, settings.node.gossip_port, settings.http.port) == ports[2]


def test_advertised_ports_count_from_the_advertised_port() -> None:
    plan = planned("node.host=0.0.0.0", "node.advertise=box:9000", "security.insecure=true")
    assert [str(w.address) for w in plan.workers] == ["box:9000", "box:9002", "box:9004"]
    assert told(plan, 1).node.advertise == "box:9002"
    assert planned("node.advertise=box").workers[1].address == ("box", 7357)


def test_free_ports_of_http_stay_free() -> None:
    assert {w.http_port for w in planned("http.port=0").workers} == {0}


def test_without_seeds_worker_0_founds_the_cluster_and_only_once() -> None:
    plan, addresses = planned(), ("127.0.0.1:7355", "127.0.0.1:7357", "127.0.0.1:7359")
    assert told(plan, 0, joins=False).node.seeds == ()
    assert told(plan, 1).node.seeds == addresses
    assert told(plan, 0).node.seeds == addresses


def test_seeds_of_the_user_come_first_and_are_not_said_twice() -> None:
    plan = planned("node.seeds=other:7355,127.0.0.1:7357")
    for number in range(3):
        assert told(plan, number).node.seeds == (
            *("other:7355", "127.0.0.1:7357"),
            *("127.0.0.1:7355", "127.0.0.1:7359"),
        )


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        (["store.url=memory://"], "memory"),
        (["node.port=65531"], "65536"),
        (["node.advertise=box:65533"], "worker 2"),
        (["node.port=8555"], "8558"),
        (["node.gossip_port=7357"], "7357"),
    ],
)
def test_ports_and_stores_that_cannot_be_shared_are_refused(
    assignments: list[str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        planned(*assignments)


def test_a_line_is_marked_and_json_stays_json() -> None:
    assert marked(3, b"hello") == b"[3] hello"
    assert marked(3, b"{set}") == b"[3] {set}"
    line = marked(3, b'{"time": "now", "message": "a {b}"}')
    assert json.loads(line) == {"worker": 3, "time": "now", "message": "a {b}"}


ONE = """\
# HELP a Things
# TYPE a gauge
a{t="x y"} 1.0
a{t="{"} 2.0
# HELP b Others
# TYPE b counter
b 3.0
"""
OTHER = """\
# HELP b Others
# TYPE b counter
b 4.0
# HELP c More
# TYPE c gauge
c{} 5.0
"""


def test_metrics_of_all_are_one_page_with_each_family_once() -> None:
    assert merged({1: OTHER, 0: ONE}).splitlines() == [
        "# HELP a Things",
        "# TYPE a gauge",
        'a{worker="0",t="x y"} 1.0',
        'a{worker="0",t="{"} 2.0',
        "# HELP b Others",
        "# TYPE b counter",
        'b{worker="0"} 3.0',
        'b{worker="1"} 4.0',
        "# HELP c More",
        "# TYPE c gauge",
        'c{worker="1"} 5.0',
    ]
