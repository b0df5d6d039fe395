"""Addresses, nodes, ids and the default shard function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.ids import Address, NodeId, check_id, check_text, shard_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7355", Address("10.0.0.1", 7355)),
        ("tcp://host:1", Address("host", 1)),
        ("[::1]:7355", Address("::1", 7355)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":7355", "host:0", "host:65536", "host:x", "host:" + 5000 * "9"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "port", "address"),
    [
        ("host", 7355, Address("host", 7355)),
        ("host:1", 7355, Address("host", 1)),
        ("::1", 7355, Address("::1", 7355)),
        ("[::1]:1", 7355, Address("::1", 1)),
    ],
)
def test_an_advertised_host_may_have_a_port(text: str, port: int, address: Address) -> None:
    assert Address.advertised(text, port) == address


@pytest.mark.parametrize(
    "text",
    ["bad host", "", "a/b", "a\n", "-x", "tcp://h", "h:0", "h:99999", "ü", "x" * 254, "a b:1"],
)
def test_TU10_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.advertised(text, 7355)


@pytest.mark.parametrize(
    "host", ["localhost", "10.0.0.1", "::1", "fe80::1%eth0", "a-b.c", "node_1", "1a"]
)
def test_what_is_a_host_is_taken(host: str) -> None:
    address = Address(host, 1)
    assert Address.parse(str(address)) == address


@given(st.integers(0, 2**64 - 1))
def test_a_node_is_read_as_it_is_written(uid: int) -> None:
    node = NodeId("127.0.0.1", 7355, uid)
    assert NodeId.parse(str(node)) == node


@pytest.mark.parametrize(
    "text", ["h:1", "h:1#", "h:1#x", "h:1#-1", "#1", f"h:1#1{'0' * 16}", "h:0#1"]
)
def test_text_that_names_no_incarnation_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        NodeId.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7355", "127.0.0.1:7355#", "h:1#-1", "h:1#zz", "#1"])
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        NodeId.parse(text)


@pytest.mark.parametrize("value", ["a", "x" * 256, "ü" * 128, "{}", "../etc", "日本", "a b"])
def test_ids_are_values(value: str) -> None:
    assert check_id("an id", value) == value


@pytest.mark.parametrize(
    "value", ["", "x" * 257, "ü" * 129, "a\n", "\x00", "\x7f", "\x85", "\ud800"]
)
def test_what_is_no_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        check_id("an id", value)


def test_the_shard_of_an_id_is_the_same_for_ever() -> None:
    assert [shard_of(i, 100) for i in ("page-7", "N14228", "ü", "")] == ["42", "66", "89", "0"]


@pytest.mark.parametrize("pattern", ["user-{}", "{}", "order/{:08}", "N{}UA"])
def test_ids_that_count_up_spread_evenly(pattern: str) -> None:
    """100,000 ids over 256 shards: no shard is a third away from its share."""
    counts: dict[str, int] = {}
    for n in range(100_000):
        shard = shard_of(pattern.format(n), 256)
        counts[shard] = counts.get(shard, 0) + 1
    assert len(counts) == 256
    share = 100_000 / 256
    assert share * 0.67 < min(counts.values())
    assert max(counts.values()) < share * 1.33


def test_an_error_shows_the_begin_of_a_long_text() -> None:
    for read in (Address.parse, NodeId.parse, lambda text: check_id("entity id", text)):
        with pytest.raises(ConfigError) as refused:
            read("\udcff" * 100_000)
        assert len(str(refused.value)) < 1_000


class Name(str):
    """A text of an application's own class, which no encoder takes."""

    __slots__ = ()


@pytest.mark.parametrize("text", ["", "a", "\n", "é", "\U0001f600", "x" * 1000])
@pytest.mark.parametrize("kind", [str, Name])
def test_a_text_that_can_be_sent_is_a_plain_one(text: str, kind: type[str]) -> None:
    checked = check_text("a text", kind(text))
    assert (type(checked), checked) == (str, text)


@pytest.mark.parametrize("value", [b"a", None, 1, "\ud800", "a\udfff", Name("\udc80")])
def test_a_text_that_cannot_be_sent_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="a text"):
        check_text("a text", value)


@pytest.mark.parametrize("text", ["a", "é"])
def test_an_id_of_a_class_of_texts_is_a_plain_one(text: str) -> None:
    assert type(check_id("an id", Name(text))) is str
