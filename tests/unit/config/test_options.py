"""Kinds of values: the values that each one accepts; a refusal is one line with key and origin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.loading import (
    from_environment,
    load,
    nested_at,
    options,
)
from shardbus.config.options import Option, ValueType, parse
from shardbus.errors import ConfigError
from tests.unit.config.refusal import refusal

DECLARED = dict(options())


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


@pytest.mark.parametrize("written", ['["w", "x"]', " ['w','x',] ", "w, x"])
def test_a_list_of_toml_in_a_variable_is_a_list(written):
    assert parse(DECLARED["node.roles"], written) == ("w", "x")
    assert parse(DECLARED["node.roles"], "[]") == ()
    assert parse(DECLARED["node.seeds"], "[::1]:7355,a:1")
    for broken in ('["w"', '["w", 7]', '["w"] x'):
        assert "not a list of words" in refusal(("--set", {"node": {"roles": broken}}))


@pytest.mark.parametrize("value", [True, 1, None, "a\nb", "all"])
def test_a_value_of_another_class_gets_the_choices_too(value):
    with pytest.raises(ConfigError, match="must be one of off, shards, singleton, both"):
        parse(DECLARED["sharding.use_lease"], value)


def test_a_seed_is_an_address():
    assert "host:port" in refusal(("--seed", {"node": {"seeds": ["10.0.0.1"]}}))


def test_choices_are_named():
    text = refusal(("f", {"log": {"level": "loud"}}))
    assert "debug, info, warning, error" in text


@given(st.sampled_from(sorted(DECLARED)), st.text() | st.integers() | st.floats() | st.none())
def test_any_value_is_taken_or_refused_in_one_line(key, value):
    said = ""
    try:
        load([("anywhere", nested_at(key, value))])
    except ConfigError as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 400
