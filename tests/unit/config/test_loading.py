"""The layers of settings: files, variables and assignments, which one wins, and unknown names."""

from __future__ import annotations

import pytest

from shardbus.config.loading import (
    for_types,
    from_assignments,
    from_environment,
    load,
    options,
    origins,
    variable_of,
)
from shardbus.errors import ConfigError
from tests.unit.config.refusal import refusal

DECLARED = dict(options())


def test_counts_by_role_join_over_layers():
    layers = [
        ("f", {"cluster": {"role_min_members": {"web": 1, "backend": 2}}}),
        *from_environment({"SHARDBUS_CLUSTER__ROLE_MIN_MEMBERS__BACKEND": "3"}),
        *from_assignments(["cluster.role_min_members=gpu=4"]),
    ]
    assert load(layers).cluster.role_min_members == {"web": 1, "backend": 3, "gpu": 4}


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
