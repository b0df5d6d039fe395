"""The forms of a seed."""

from __future__ import annotations

import pytest

from shardbus.config.loading import load
from shardbus.config.seeds import DnsName, SeedList, parse_seed, parse_seeds
from shardbus.errors import ConfigError
from shardbus.ids import Address


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10.0.0.1:7355", Address("10.0.0.1", 7355)),
        ("store", "store"),
        ("dns://shop", DnsName("shop")),
        ("dns://shop.prod.svc.cluster.local", DnsName("shop.prod.svc.cluster.local")),
        ("dns://shop:7000", DnsName("shop", 7000)),
        ("dns://shop/", DnsName("shop")),
        ("dns://_messages._tcp.shop-nodes", DnsName("_messages._tcp.shop-nodes")),
        (
            "dns://_m._tcp.shop.prod.svc.cluster.local",
            DnsName("_m._tcp.shop.prod.svc.cluster.local"),
        ),
    ],
)
def test_a_seed_has_one_of_three_forms(text: str, meant: object) -> None:
    assert parse_seed(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("dns://", "dns://-x", "dns://a b", "dns://shop:0", "dns://shop:99999", "stores"),
        *("dns://_m._tcp.shop:7355", "dns://_m", "dns://_m._udp.shop", "dns://_._tcp.shop"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_seed(text)


def test_a_name_of_a_service_begins_with_an_underscore() -> None:
    assert DnsName("_messages._tcp.shop").is_service
    assert not DnsName("shop").is_service


def test_a_list_may_have_all_forms() -> None:
    seeds = parse_seeds(["10.0.0.1:7355", "store", "dns://shop"])
    assert seeds == SeedList((Address("10.0.0.1", 7355),), (DnsName("shop"),), True)
    assert seeds.discovers
    assert not parse_seeds(["10.0.0.1:7355"]).discovers


@pytest.mark.parametrize("seed", ["store", "dns://shop"])
def test_discovery_needs_a_store_that_nodes_share(seed: str) -> None:
    sections = [("f", {"node": {"seeds": [seed]}, "store": {"url": "memory://"}})]
    with pytest.raises(ConfigError, match="each node would found a cluster of its own"):
        load(sections)
    load([("f", {"node": {"seeds": ["10.0.0.1:1"]}, "store": {"url": "memory://"}})])


def test_a_registration_must_outlast_a_write_that_fails() -> None:
    short = {"cluster": {"founding_claim": 5.0}, "node": {"seeds": ["store"]}}
    with pytest.raises(ConfigError, match="at least three times"):
        load([("f", short)])
