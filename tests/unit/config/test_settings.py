"""Settings: every value has one declaration, and everything refused says key and origin."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.loading import (
    for_types,
    from_assignments,
    from_environment,
    load,
    nested_at,
    options,
    origins,
    variable_of,
)
from shardbus.config.options import Option, ValueType, parse
from shardbus.config.settings import (
    HttpSettings,
    NodeSettings,
    SecuritySettings,
    Settings,
    ShardingSettings,
    StoreSettings,
)
from shardbus.config.validation import check_exposure, check_leases
from shardbus.errors import ConfigError

DECLARED = dict(options())


def value_at(settings: Settings, key: str) -> object:
    found: object = settings
    for part in key.split("."):
        found = getattr(found, part)
    return found


def refusal(*layers: tuple[str, object]) -> str:
    with pytest.raises(ConfigError) as refused:
        load(layers)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    return str(refused.value)


# The tree


def test_defaults_are_those_of_the_seeds():
    settings = Settings()
    sharding = settings.sharding
    assert (sharding.retry_interval, sharding.buffer_size) == (2.0, 100_000)
    assert (sharding.handoff_timeout, sharding.shard_start_timeout) == (60.0, 10.0)
    assert (sharding.shard_failure_backoff, sharding.entity_restart_backoff) == (10.0, 10.0)
    assert (sharding.rebalance_interval, sharding.coordinator_failure_backoff) == (10.0, 5.0)
    assert (sharding.rebalance_threshold, sharding.max_simultaneous_rebalance) == (10, 3)
    assert (sharding.updating_state_timeout, sharding.waiting_for_state_timeout) == (5.0, 2.0)
    assert (sharding.min_members, sharding.role, sharding.remember) == (1, "", False)
    detector = settings.cluster.failure_detector
    cluster = settings.cluster
    assert (cluster.gossip_interval, cluster.leader_actions_interval) == (1.0, 1.0)
    assert (cluster.gossip_time_to_live, cluster.gossip_partition_breaker) == (2.0, 0.0)
    assert (detector.heartbeat_interval, detector.expected_response_after) == (1.0, 1.0)
    assert (detector.threshold, detector.max_sample_size, detector.monitored_by) == (8.0, 1000, 9)
    assert load() == settings


def test_every_default_is_a_value_that_its_own_declaration_accepts():
    settings = Settings()
    for key, option in DECLARED.items():
        default = value_at(settings, key)
        assert parse(option, default) == default, key


def test_every_setting_has_a_meaning_and_every_number_a_range():
    for key, option in DECLARED.items():
        assert option.meaning, key
        if option.kind in (ValueType.SECONDS, ValueType.SIZE, ValueType.COUNT, ValueType.NUMBER):
            assert option.low < option.high, key


def test_every_field_of_the_tree_is_declared():
    def leaves(section: type, prefix: str) -> list[str]:
        found = []
        for declared in fields(section):
            nested = declared.default_factory
            if is_dataclass(nested):
                found += leaves(nested, f"{prefix}{declared.name}.")
            elif declared.name != "types":
                found.append(f"{prefix}{declared.name}")
        return found

    assert leaves(Settings, "") == list(DECLARED)


# Values


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (2, 2.0),
        (0.5, 0.5),
        ("2", 2.0),
        ("2s", 2.0),
        (" 2 s ", 2.0),
        ("100ms", 0.1),
        ("1m", 60.0),
        ("24h", 86400.0),
        ("1.5d", 129600.0),
        (".5s", 0.5),
    ],
)
def test_durations(written, meant):
    assert load([("f", {"store": {"timeout": 0.4}, "sharding": {"handoff_timeout": written}})])
    assert parse(Option(ValueType.SECONDS, "", low=0.001, high=1e6), written) == pytest.approx(
        meant
    )


@pytest.mark.parametrize(
    "written", ["", "s", "2x", "two", "-1s", "nan", "inf", "1e999", "9" * 500, True, None, [2], 0]
)
def test_no_durations(written):
    text = refusal(("shop.toml", {"sharding": {"retry_interval": written}}))
    assert text.startswith("sharding.retry_interval = ")
    assert "(shop.toml)" in text


@pytest.mark.parametrize(
    ("written", "meant"),
    [("64MiB", 64 * 2**20), ("1 GB", 10**9), (4096, 4096), ("512", 512), ("1.5KiB", 1536)],
)
def test_sizes(written, meant):
    settings = load([("f", {"sharding": {"buffer_bytes": written}})])
    assert settings.sharding.buffer_bytes == meant


@pytest.mark.parametrize("written", ["64XB", "0", 0.5, "1.0001B", "2s", False])
def test_no_sizes(written):
    assert "sharding.buffer_bytes" in refusal(("f", {"sharding": {"buffer_bytes": written}}))


@pytest.mark.parametrize("written", ["on", "TRUE", "yes", "1", True])
def test_flags(written):
    assert load([("f", {"security": {"insecure": written}})]).security.insecure is True


@pytest.mark.parametrize("written", ["maybe", 1, 2.0, None])
def test_no_flags(written):
    assert "not true or false" in refusal(("f", {"security": {"insecure": written}}))


@pytest.mark.parametrize("written", [True, 2.0, "2.0", "x", 0, 65536 * 65536])
def test_no_counts(written):
    assert "sharding.mailbox" in refusal(("f", {"sharding": {"mailbox": written}}))


@pytest.mark.parametrize("written", ["off", False, 0, "0"])
def test_a_setting_that_zero_turns_off_may_be_written_off(written):
    assert load([("f", {"sharding": {"passivate_after": written}})]).sharding.passivate_after == 0


def test_lists_come_from_toml_and_from_one_variable():
    as_list = load([("f", {"node": {"seeds": ["10.0.0.1:7355", "10.0.0.2:7355"]}})])
    as_text = load(from_environment({"SHARDBUS_NODE__SEEDS": "10.0.0.1:7355, 10.0.0.2:7355"}))
    assert as_list == as_text
    assert as_text.node.seeds == ("10.0.0.1:7355", "10.0.0.2:7355")


def test_a_seed_is_an_address():
    assert "host:port" in refusal(("--seed", {"node": {"seeds": ["10.0.0.1"]}}))


def test_choices_are_named():
    text = refusal(("f", {"log": {"level": "loud"}}))
    assert "debug, info, warning, error" in text


def test_counts_by_role_join_over_layers():
    layers = [
        ("f", {"cluster": {"role_min_members": {"web": 1, "backend": 2}}}),
        *from_environment({"SHARDBUS_CLUSTER__ROLE_MIN_MEMBERS__BACKEND": "3"}),
        *from_assignments(["cluster.role_min_members=gpu=4"]),
    ]
    assert load(layers).cluster.role_min_members == {"web": 1, "backend": 3, "gpu": 4}


@given(st.sampled_from(sorted(DECLARED)), st.text() | st.integers() | st.floats() | st.none())
def test_any_value_is_taken_or_refused_in_one_line(key, value):
    said = ""
    try:
        load([("anywhere", nested_at(key, value))])
    except ConfigError as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 400


# Layers


def test_later_layers_win_and_origins_say_which():
    layers = [
        ("shop.toml", {"node": {"port": 1}, "http": {"port": 11}}),
        *from_environment({"SHARDBUS_NODE__PORT": "2", "PATH": "/bin"}),
        *from_assignments(["node.port=3", "cluster.failure_detector.threshold=12"]),
    ]
    settings = load(layers)
    assert (settings.node.port, settings.http.port) == (3, 11)
    assert settings.cluster.failure_detector.threshold == 12.0
    assert origins(layers) == {
        "node.port": "--set node.port",
        "http.port": "shop.toml",
        "cluster.failure_detector.threshold": "--set cluster.failure_detector.threshold",
    }


def test_a_bad_value_is_refused_even_where_a_later_layer_replaces_it():
    for bad in ("x", 0, 65536):
        text = refusal(("shop.toml", {"node": {"port": bad}}), ("--port", {"node": {"port": 1}}))
        assert "shop.toml" in text


@pytest.mark.parametrize(
    ("layer", "nearest"),
    [
        ({"nod": {"port": 1}}, "node"),
        ({"node": {"prot": 1}}, "node.port"),
        ({"cluster": {"failure_detector": {"treshold": 1}}}, "cluster.failure_detector.threshold"),
        ({"cluster": {"stable_after": 1}}, "cluster.downing.stable_after"),
        ({"sharding": {"types": {"counter": {"shard": 1}}}}, "shards"),
    ],
)
def test_an_unknown_key_is_refused_with_the_closest_name(layer, nearest):
    text = refusal(("shop.toml", layer))
    assert text.startswith("unknown setting")
    assert "(shop.toml)" in text
    assert text.endswith(f"did you mean {nearest}?")


@pytest.mark.parametrize(
    "layer", [{"node": 3}, {"cluster": {"downing": "off"}}, {"sharding": {"types": 1}}]
)
def test_a_section_is_no_value(layer):
    assert "is a section" in refusal(("shop.toml", layer))


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SHARDBUS_NODE__PORTT", "SHARDBUS_NODE__PORT"),
        ("SHARDBUS_NOED__PORT", "SHARDBUS_NODE__PORT"),
        ("SHARDBUS_NODE_PORT", "SHARDBUS_NODE__PORT"),
        ("SHARDBUS_NODE_URLL", "SHARDBUS_NODE_URL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_closest_name(variable, nearest):
    with pytest.raises(ConfigError, match=rf"unknown variable '{variable}'.*mean {nearest}\?"):
        from_environment({variable: "1"})


def test_variables_of_the_reading_commands_are_no_settings():
    assert from_environment({"SHARDBUS_NODE_URL": "http://h", "SHARDBUS_NODE_TOKEN": "t"}) == []


def test_every_setting_has_a_variable_of_its_own():
    variables = [variable_of(key) for key in DECLARED]
    assert len(set(variables)) == len(variables)
    layers = from_environment({variable_of("cluster.downing.stable_after"): "7s"})
    assert load(layers).cluster.downing.stable_after == 7.0


def test_an_assignment_needs_a_value():
    with pytest.raises(ConfigError, match=r"--set 'node.port' has no value"):
        from_assignments(["node.port"])


# One entity type


def test_a_type_takes_defaults_then_section_then_class_then_its_own_section():
    layers = from_assignments(
        [
            "sharding.mailbox=50",
            "sharding.retry_interval=3s",
            "sharding.shards=10",
            "sharding.types.counter.shards=30",
        ]
    )
    sharding = load(layers).sharding
    counter = sharding.for_type("counter", {"shards": 20, "retry_interval": "4s"})
    assert (counter.shards, counter.retry_interval, counter.mailbox) == (30, 4.0, 50)
    other = sharding.for_type("other", {"shards": 20})
    assert (other.shards, other.retry_interval) == (20, 3.0)
    assert counter.types == {}


def test_a_types_name_may_hold_dots():
    sharding = load(from_assignments(["sharding.types.shop.Cart.shards=7"])).sharding
    assert sharding.for_type("shop.Cart", {}).shards == 7


def test_a_declaration_is_checked_and_named():
    with pytest.raises(
        ConfigError, match=r"shards = 0 .the declaration of 'counter'.: must be 1 to"
    ):
        Settings().sharding.for_type("counter", {"shards": 0})
    with pytest.raises(ConfigError, match=r"unknown setting 'shard'.*did you mean shards"):
        Settings().sharding.for_type("counter", {"shard": 1})
    with pytest.raises(ConfigError, match="unknown setting 'types'"):
        Settings().sharding.for_type("counter", {"types": {}})


def test_a_phase_of_a_handoff_does_not_outlast_the_handoff():
    quick = Settings().sharding.for_type("c", {"handoff_timeout": 2, "entity_restart_backoff": 0.1})
    assert (quick.begin_handoff_timeout, quick.entity_restart_backoff_min) == (2.0, 0.1)


# Together


@pytest.mark.parametrize(
    ("assignments", "both"),
    [
        (["node.port=7000", "node.gossip_port=7000"], ("node.port", "node.gossip_port")),
        (["node.port=65535"], ("node.port", "node.gossip_port")),
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


def test_secrets_are_in_no_representation_and_no_error():
    layers = from_assignments(
        ["http.token=hunter2-hunter2-hunter2", "store.url=redis://:hunter2@h/0"]
    )
    assert "hunter2" not in repr(load(layers))
    assert "hunter2" not in refusal(("f", {"http": {"token": ["hunter2"]}}))
    assert "hunter2" not in refusal(("f", {"http": {"token": "hunter2\n"}}))


# Entity types of an application


def types_set(environ: dict[str, str], *types: str, file: str = "") -> dict[str, object]:
    layers = [*from_environment(environ)]
    if file:
        layers.insert(0, ("app.toml", {"sharding": {"types": {file: {"mailbox": 3}}}}))
    return dict(load(for_types(layers, types)).sharding.types)


VARIABLE = "SHARDBUS_SHARDING__TYPES__CART__MAILBOX"


def test_a_variable_means_the_type_whatever_its_case():
    assert types_set({VARIABLE: "5"}, "Cart", "page") == {"Cart": {"mailbox": 5}}
    assert types_set({VARIABLE: "5"}, "cart", "Cart") == {"cart": {"mailbox": 5}}
    assert types_set({VARIABLE: "5"}, "Cart", file="Cart") == {"Cart": {"mailbox": 5}}


def test_a_variable_that_may_mean_several_types_is_refused():
    with pytest.raises(ConfigError, match=r"\(environment .*\) may be Cart or CART"):
        types_set({VARIABLE: "5"}, "Cart", "CART")


def test_settings_of_a_type_that_is_not_there_are_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match=r"no entity type 'cart' .*environment") as refused:
        types_set({VARIABLE: "5"}, "chart")
    assert refused.value.hint == "did you mean chart?"
    with pytest.raises(ConfigError, match=r"no entity type 'cart' \(app.toml\)") as refused:
        types_set({}, "Cart", file="cart")
    assert refused.value.hint == "did you mean Cart?"


def test_a_coordinator_must_finish_before_the_next_oldest_stops_waiting() -> None:
    late = {"cluster": {"singleton": {"retire_timeout": "5s"}}}
    with pytest.raises(ConfigError, match=r"cluster\.singleton\.retire_timeout \(5 s\)"):
        load([("file", late)])
