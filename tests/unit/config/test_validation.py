"""Rules across settings: contradictions name both, and exposure needs permission."""

from __future__ import annotations

import pytest

from shardbus.config.loading import (
    from_assignments,
    load,
)
from shardbus.config.settings import (
    STRATEGIES,
    HttpSettings,
    NodeSettings,
    SecuritySettings,
    Settings,
    ShardingSettings,
    StoreSettings,
)
from shardbus.config.validation import check, check_exposure, check_leases
from shardbus.errors import ConfigError
from tests.unit.config.refusal import refusal
from tests.unit.http.http_kit import THERE, with_tokens


@pytest.mark.parametrize(
    ("assignments", "both"),
    [
        (["cluster.suspend_after=5s"], ("suspend_after (5 s)", "5 s after a split")),
        (["cluster.suspend_after=4500ms"], ("suspend_after (4.5 s)", "5.09 s after")),
        (
            ["cluster.suspend_after=9s", "cluster.downing.stable_after=9s"],
            ("suspend_after (9 s)", "9 s after a split"),
        ),
        (
            ["cluster.suspend_after=1s", "cluster.downing.strategy=none"],
            ("cluster.suspend_after", "cluster.downing.strategy none"),
        ),
        (
            ["cluster.suspend_after=1s", "cluster.downing.unsafe_auto_down_after=9s"],
            ("cluster.suspend_after", "cluster.downing.unsafe_auto_down_after"),
        ),
        (["cluster.suspend_after=199ms"], ("suspend_after (0.199 s)", "at least 0.2 s")),
    ],
)
def test_a_suspension_that_comes_too_late_or_never_is_refused(assignments, both):
    text = refusal(*from_assignments(assignments))
    assert all(name in text for name in both), text


@pytest.mark.parametrize("stable", ["500ms", "1s", "5s", "20s", "300s"])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "none"])
def test_the_derived_suspension_is_in_time_under_each_strategy(stable, strategy):
    options = [
        f"cluster.downing.stable_after={stable}",
        f"cluster.downing.strategy={strategy}",
        "cluster.downing.static_quorum_size=3",
    ]
    cluster = load(from_assignments(options)).cluster
    assert cluster.contact_lifetime == pytest.approx(0.8 * cluster.downing.stable_after)
    assert cluster.suspended_within <= cluster.downing.stable_after


@pytest.mark.parametrize("zone", ["x" * 257, "a\nb"], ids=["long", "two lines"])
def test_a_zone_that_gossip_cannot_carry_is_refused(zone):
    check(Settings(node=NodeSettings(zone="rack 7, west")))
    with pytest.raises(ConfigError, match=r"node\.zone is"):
        check(Settings(node=NodeSettings(zone=zone)))


def test_the_longest_and_the_shortest_suspension_are_taken():
    for seconds in ("200ms", "4400ms"):
        load(from_assignments([f"cluster.suspend_after={seconds}"]))


@pytest.mark.parametrize(
    ("assignments", "both"),
    [
        (["node.port=7000", "node.gossip_port=7000"], ("node.port", "node.gossip_port")),
        (["node.port=7000", "http.port=7000"], ("both 7000", "--port", "--http-port")),
        (["node.gossip_port=8558"], ("node.gossip_port", "http.port", "8558", "--gossip-port")),
        (
            ["node.host=localhost", "node.port=8557"],
            ("both 8558", "node.port + 1 by default", "--http-port"),
        ),
        (["node.port=65535"], ("node.port", "node.gossip_port", "--gossip-port")),
        (["node.advertise=box:7356"], ("messages and gossip", "box:7356", "--advertise")),
        (
            ["node.advertise=box", "node.advertise_gossip=box:7355"],
            ("messages and gossip", "box:7355", "--advertise-gossip"),
        ),
        (
            ["node.port=7455", "http.port=7456"],
            ("both 7456", "node.port + 1 by default", "--http-port", "--gossip-port"),
        ),
        (["node.host=0.0.0.0"], ("node.host", "node.advertise")),
        (["http.write=on"], ("http.write", "http.token")),
        (
            ["cluster.failure_detector.heartbeat_interval=5s"],
            ("heartbeat_interval", "acceptable_heartbeat_pause"),
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(assignments, both):
    text = refusal(*from_assignments(assignments))
    assert all(name in text for name in both)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_the_loopback_needs_no_permission(host):
    check_exposure(Settings(node=NodeSettings(host=host), http=HttpSettings(host=host)))


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "", "localhost.example.com", "*"])
def test_listening_outside_the_loopback_must_be_permitted(host):
    exposed = [
        Settings(node=NodeSettings(host=host)),
        Settings(http=HttpSettings(host=host)),
    ]
    for settings in exposed:
        with pytest.raises(ConfigError, match="outside the loopback"):
            check_exposure(settings)
    node = NodeSettings(host=host)
    check_exposure(Settings(node=node, security=SecuritySettings(insecure=True)))
    check_exposure(Settings(node=node, security=SecuritySettings(secret="file")))
    with pytest.raises(ConfigError, match="outside the loopback"):  # a secret does not protect HTTP
        check_exposure(
            Settings(http=HttpSettings(host=host), security=SecuritySettings(secret="file"))
        )


@pytest.mark.parametrize(
    "names", [("keys",), ("allowed",), ("keys", "allowed"), ("secret", "keys")]
)
def test_the_files_of_keys_need_each_other(names):
    files = dict.fromkeys(names, "file")
    with pytest.raises(ConfigError, match="need each other"):
        check_exposure(Settings(security=SecuritySettings(insecure=True, **files)))
    every = dict.fromkeys(("secret", "keys", "allowed"), "file")
    check_exposure(Settings(security=SecuritySettings(**every)))


@pytest.mark.parametrize(("ttl", "timeout", "good"), [(20, 2, True), (8.1, 2, True), (8, 2, False)])
def test_B100_a_lease_is_longer_than_its_renewals_may_take(ttl, timeout, good):
    store, leased = (
        StoreSettings(timeout=timeout),
        ShardingSettings(use_lease="both", lease_ttl=ttl),
    )
    check_leases("counter", ShardingSettings(lease_ttl=ttl), store)
    if good:
        check_leases("counter", leased, store)
    else:
        with pytest.raises(ConfigError, match=r"'counter' \(8 s\).*store.timeout \(2 s\)"):
            check_leases("counter", leased, store)


def test_a_coordinator_must_finish_before_the_next_oldest_stops_waiting() -> None:
    late = {"cluster": {"singleton": {"retire_timeout": "5s"}}}
    with pytest.raises(ConfigError, match=r"cluster\.singleton\.retire_timeout \(5 s\)"):
        load([("file", late)])


def test_off_the_loopback_http_needs_a_token_or_the_word_insecure() -> None:
    for of in (
        with_tokens(THERE, operator=True, reader=False),
        HttpSettings(host=THERE, token="t"),
    ):
        check_exposure(Settings(http=of))
    check_exposure(Settings(http=with_tokens(THERE, operator=False, reader=True)))
    open_ = HttpSettings(host=THERE)
    check_exposure(Settings(http=open_, security=SecuritySettings(insecure=True)))
    with pytest.raises(ConfigError, match=r"outside the loopback.*http\.reader_token"):
        check_exposure(Settings(http=open_))


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (HttpSettings(tls_cert="c"), "only one of"),
        (HttpSettings(tls_key="k"), "only one of"),
        (HttpSettings(token="t" * 15), "http.token has 15 characters, at least 16"),
        (HttpSettings(reader_token="t" * 15), "http.reader_token has 15 characters"),
        (HttpSettings(token="t" * 16, reader_token="t" * 16), "every reader may write"),
    ],
)
def test_http_settings_that_contradict_each_other(of: HttpSettings, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(Settings(http=of))


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["deletion_costs=3"], "without kubernetes.pod; set SHARDBUS_KUBERNETES__POD"),
        (["deletion_costs=3", "pod=../secrets/a"], "kubernetes.pod is '../secrets/a'"),
        (["revision=on"], "kubernetes.revision is set without kubernetes.pod"),
        (["pod=Shop"], "kubernetes.pod is 'Shop'"),
        (["pod=-a"], "kubernetes.pod is '-a'"),
        (["namespace=a/b"], "kubernetes.namespace is 'a/b'"),
        (["api=10.96.0.1"], "kubernetes.api: not an address: '10.96.0.1'; write HOST:PORT"),
        (["deletion_costs=1001"], "1001"),
    ],
)
def test_a_node_whose_pod_has_a_cost_knows_its_pod(assignments, words):
    text = refusal(*from_assignments([f"kubernetes.{each}" for each in assignments]))
    assert words in text


def test_a_pod_with_a_cost_needs_no_more_than_its_name():
    options = ["kubernetes.deletion_costs=3", "kubernetes.pod=shop-7c5d.x-2"]
    assert load(from_assignments(options)).kubernetes.deletion_costs == 3
    assert load(from_assignments(["kubernetes.deletion_costs=off"])).kubernetes.deletion_costs == 0


def test_a_node_has_one_version():
    options = ["kubernetes.revision=on", "kubernetes.pod=a"]
    assert load(from_assignments(options)).kubernetes.revision
    text = refusal(*from_assignments([*options, "node.version=1.2"]))
    assert "kubernetes.revision is on, and node.version is '1.2'; leave one of them out" in text


def test_a_node_that_may_not_found_has_a_cluster_to_join():
    text = refusal(*from_assignments(["cluster.new_cluster=off"]))
    assert "cluster.new_cluster is off, and node.seeds are empty" in text
    for more in ("node.seeds=10.0.0.1:7355", "node.join=manual"):
        assert not load(from_assignments(["cluster.new_cluster=off", more])).cluster.new_cluster
