"""The addresses of replicas, from the settings of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardbus.config.replicas import (
    default_path,
    is_in_memory,
    is_replicated,
    replica_plan,
    replicas_of,
)
from shardbus.config.settings import NodeSettings, Settings, StoreSettings
from shardbus.config.validation import check
from shardbus.errors import ConfigError
from shardbus.ids import Address

SEEDS = ("10.0.0.1:7355", "10.0.0.2:7355", "10.0.0.3:7355")


def settings(store: dict[str, Any] | None = None, **node: Any) -> Settings:
    store_settings = StoreSettings(**{"url": "cluster://", **(store or {})})
    return Settings(
        node=NodeSettings(**{"host": "10.0.0.1", "seeds": SEEDS, **node}), store=store_settings
    )


def test_each_seed_has_a_replica_two_ports_above_it():
    plan = replica_plan(settings())
    assert plan.url == "cluster://10.0.0.1:7357,10.0.0.2:7357,10.0.0.3:7357"
    assert (plan.me, plan.port) == (Address("10.0.0.1", 7357), 7357)


def test_the_order_is_the_same_everywhere():
    turned = settings(host="10.0.0.3", seeds=SEEDS[::-1])
    assert replica_plan(turned).peers == replica_plan(settings()).peers


def test_a_node_that_is_no_seed_has_no_replica():
    plan = replica_plan(settings(host="10.0.0.9"))
    assert plan.me is None
    assert len(plan.peers) == 3


def test_workers_have_their_replica_above_all_their_ports():
    plan = replica_plan(settings(), workers=4)
    assert (plan.port, plan.me) == (7363, Address("10.0.0.1", 7363))


def test_a_port_of_its_own_is_as_far_away_on_every_node():
    plan = replica_plan(settings({"port": 7400}, seeds=("10.0.0.1:7355", *SEEDS[1:])))
    assert [peer.port for peer in plan.peers] == [7400] * 3


def test_the_advertised_address_is_the_replicas_too():
    plan = replica_plan(settings(host="0.0.0.0", advertise="10.0.0.1:9355",
                                 seeds=("10.0.0.1:9355", *SEEDS[1:])))  # fmt: skip
    assert (plan.me, plan.port) == (Address("10.0.0.1", 9357), 7357)


def test_replicas_may_be_named_in_the_url():
    url = "cluster://10.0.0.1:7357,10.0.0.2:1,[::1]:5"
    plan = replica_plan(settings({"url": url}, seeds=("dns://shop",)))
    assert set(plan.peers) == set(replicas_of(url))
    assert plan.me == Address("10.0.0.1", 7357)


def test_replicas_in_memory_are_named_in_the_url():
    plan = replica_plan(settings({"url": "cluster://?durability=memory"}))
    assert plan.url == ("cluster://10.0.0.1:7357,10.0.0.2:7357,10.0.0.3:7357?durability=memory")
    assert replicas_of(plan.url) == plan.peers
    assert is_in_memory(plan.url)
    assert not any(map(is_in_memory, ("cluster://", "cluster://a:1?durability=disk")))


@pytest.mark.parametrize(
    ("changes", "node", "text"),
    [
        ({"url": "cluster://?durability=cache"}, {}, "durability=cache"),
        ({"url": "cluster://?replicas=1"}, {}, "replicas=1"),
        ({}, {"seeds": ()}, "store.replicas is 3, and this node alone names 1"),
        ({}, {"seeds": SEEDS[:2]}, "node.seeds names 2"),
        ({"url": "cluster://a:1,b:2"}, {}, "store.url names 2"),
        ({}, {"seeds": ("dns://shop",)}, "names to look up"),
        ({}, {"seeds": ("10.0.0.1:65534", *SEEDS[1:])}, "would have port 65536"),
        ({"url": "cluster://a"}, {}, "not an address"),
    ],
)
def test_what_names_no_store_is_refused(
    changes: dict[str, Any], node: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        replica_plan(settings(changes, **node))


def test_one_node_may_have_a_store_of_one_replica():
    plan = replica_plan(settings({"replicas": 1}, seeds=()))
    assert plan.peers == (plan.me,) == (Address("10.0.0.1", 7357),)


def test_ports_of_a_node_and_its_replica_differ():
    with pytest.raises(ConfigError, match=r"store.port .*are both 7356"):
        check(settings({"port": 7356}))
    check(settings())


def test_only_this_family_has_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_replicated("cluster://")
    assert not is_replicated("redis+cluster://a:1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path("a/b", 7357) == tmp_path / "shardbus" / "a%2Fb-replica-7357"
