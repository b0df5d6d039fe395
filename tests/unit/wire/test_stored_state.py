"""Stored states through the versions of a class."""

from __future__ import annotations

import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import SchemaError, StateUnreadable
from shardbus.wire.schema import decoder, encode_value
from shardbus.wire.stored_state import (
    COMPRESSED_MIN,
    INFLATED_MAX,
    VERSION_MAX,
    VERSIONED,
    StateCodec,
    compressed,
    split,
    split_record,
    with_record,
)


@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    owner: str = ""


def codec(version: int = 1, **migrations: Any) -> StateCodec:
    steps = {int(name.removeprefix("from_")): step for name, step in migrations.items()}
    return StateCodec("cart", Cart, decoder(Cart), version, steps)


def test_the_first_version_is_the_plain_value() -> None:
    state = Cart({"tea": 2}, "ann")
    assert codec().write(state) == encode_value(state)
    assert codec().read("7", encode_value(state)) == state


@given(st.integers(2, VERSION_MAX), st.dictionaries(st.text(), st.integers(-9, 9)), st.text())
def test_what_is_written_is_read(version: int, items: dict[str, int], owner: str) -> None:
    codec_ = codec(version)
    data = codec_.write(Cart(items, owner))
    assert split(data) == (version, encode_value(Cart(items, owner)))
    assert codec_.read("7", data) == Cart(items, owner)


plain = (
    st.none(), st.integers(-(2**63), 2**64 - 1), st.text(), st.binary(),
    st.lists(st.integers(0, 9)), st.dictionaries(st.text(), st.booleans()),
)  # fmt: skip


@given(st.one_of(*plain))
def test_no_plain_value_is_taken_for_a_version(value: object) -> None:
    assert split(encode_value(value)) == (1, encode_value(value))


def test_an_older_value_goes_through_each_migration_in_order() -> None:
    def to_2(value: dict[str, Any]) -> dict[str, Any]:
        return {"things": dict.fromkeys(value["things"], 1)}

    def to_3(value: dict[str, Any]) -> dict[str, Any]:
        return {"items": value["things"], "owner": "nobody"}

    latest = codec(3, from_1=to_2, from_2=to_3)
    assert latest.read("7", encode_value({"things": ["tea", "cake"]})) == Cart(
        {"tea": 1, "cake": 1}, "nobody"
    )
    second = StateCodec("cart", dict, decoder(dict), 2)
    assert latest.read("7", second.write({"things": {"tea": 5}})) == Cart({"tea": 5}, "nobody")
    assert latest.read("7", latest.write(Cart({"tea": 6}))) == Cart({"tea": 6})


def wrong(codec_: StateCodec, data: bytes) -> StateUnreadable:
    with pytest.raises(StateUnreadable) as caught:
        codec_.read("7", data)
    error = caught.value
    assert (error.entity_type, error.entity_id, error.definite) == ("cart", "7", True)
    return error


def test_what_cannot_be_read_says_why() -> None:
    data = encode_value({"items": {"tea": "two"}})
    error = wrong(codec(), data)
    assert (error.version, error.field) == (1, "items[...]")
    assert "the stored state of cart '7', version 1: ValidationError: Expected `int`" in str(error)

    error = wrong(codec(2), codec(5).write(Cart()))
    assert (error.version, error.field) == (5, "")
    assert str(error).endswith("version 5: this class reads versions up to 2")

    error = wrong(codec(3, from_2=dict), encode_value({}))
    assert str(error).endswith("version 1: there is no migration from version 1")

    error = wrong(codec(2, from_1=lambda value: value["gone"]), encode_value({}))
    assert str(error).endswith("version 1: KeyError: 'gone'")

    error = wrong(codec(2, from_1=lambda value: {"owner": object()}), encode_value({}))
    assert "SchemaError" in str(error)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xc1\x00", b"\xc1\x00\x02", b"\xff\xff", b"\xc0"])
def test_damaged_bytes_are_unreadable(data: bytes) -> None:
    wrong(codec(2, from_1=lambda value: value["items"]), data)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_unreadable(data: bytes) -> None:
    for codec_ in (codec(), codec(2, from_1=lambda value: value)):
        with suppress(StateUnreadable):
            assert isinstance(codec_.read("7", data), Cart)


def test_the_mark_of_a_version_begins_no_value() -> None:
    with pytest.raises(Exception, match="malformed"):
        decoder(object)(bytes((VERSIONED,)))


def test_a_long_state_is_compressed_and_read_by_its_version() -> None:
    state = Cart({f"item {n}": n for n in range(500)}, "ann")
    for version in (1, 3):
        plain = codec(version).write(state)
        short = compressed(plain)
        assert len(short) < len(plain) / 2
        assert short[:4] == b"\xc1\xff\xff\x01"
        assert split(short) == (version, encode_value(state))
        assert codec(version).read("7", short) == state


def test_what_would_not_be_shorter_is_stored_as_it_is() -> None:
    for data in (b"x" * (COMPRESSED_MIN - 1), Random(1).randbytes(5000)):
        assert compressed(data) is data


def test_a_reader_without_compression_takes_it_for_a_newer_version() -> None:
    version = int.from_bytes(compressed(b"x" * 5000)[1:3], "big")
    assert version == VERSION_MAX + 1


def test_a_compressed_state_that_cannot_be_read_says_why() -> None:
    short = compressed(codec().write(Cart({f"item {n}": n for n in range(500)})))
    bomb = short[:4] + zlib.compress(bytes(INFLATED_MAX + 1))
    twice = short[:4] + zlib.compress(short)
    for data, why in (
        (short[:3] + b"\x09" + short[4:], "compressed in way 09, not in way 01"),
        (short[:3], "compressed in way none"),
        (short[:-5], f"compressed state over {INFLATED_MAX} bytes, or cut off"),
        (short[:4] + b"nonsense", "malformed compressed state"),
        (bomb, f"over {INFLATED_MAX} bytes"),
        (twice, "compressed twice"),
    ):
        with pytest.raises(StateUnreadable, match=why):
            codec().read("7", data)


def test_a_state_that_its_class_cannot_read_is_not_written() -> None:
    @dataclass
    class Account:
        cents: Annotated[int, msgspec.Meta(le=100)] = 0
        name: str = ""
        tags: set[int] = field(default_factory=set)
        anything: object = None

    @dataclass
    class LongAccount(Account):
        more: int = 1

    states = StateCodec("account", Account, decoder(Account))
    wrong: list[tuple[object, str]] = [
        (Account(7 / 2), r"account\.cents: Expected `int`, got `float`"),  # type: ignore[arg-type]
        (Account("5"), r"account\.cents: "),  # type: ignore[arg-type]
        (Account(101), r"account\.cents: Expected `int` <= 100"),
        (Account(name=None), r"account\.name: Expected `str`, got `None`"),  # type: ignore[arg-type]
        (Account(name=uuid.UUID(int=1)), r"account\.name: is a UUID"),  # type: ignore[arg-type]
        (Account(tags={"x"}), r"account\.tags"),  # type: ignore[arg-type]
        (Account(tags=[1]), r"account\.tags: is a list, not a set"),  # type: ignore[arg-type]
        (Account(anything={1}), r"account\.anything: is a set"),
        (LongAccount(), "account: is a LongAccount, not a Account"),
        (None, "account: is a NoneType"),
        ({"cents": 5}, "account: is a dict"),
    ]
    for state, why in wrong:
        with pytest.raises(SchemaError, match="cannot store the state of " + why):
            states.write(state)
    account = Account(5, "a", {1}, [1, {"a": None}])
    assert states.read("7", states.write(account)) == account


def test_a_moment_in_the_hour_that_a_clock_repeats_can_be_stored() -> None:
    """Python calls it unequal to the same moment in another zone."""

    @dataclass
    class Visit:
        at: datetime | None = None

    states = StateCodec("visit", Visit, decoder(Visit))
    at = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    assert at != at.astimezone(UTC)
    assert states.read("7", states.write(Visit(at))).at == at.astimezone(UTC)


@pytest.mark.parametrize("record", [b"", b"r", b"\xc1" * 300])
def test_a_record_stands_beside_any_state_and_is_not_a_part_of_it(record: bytes) -> None:
    cart = Cart({f"item {n}": n for n in range(500)})
    plain = codec().write(cart)
    for data in (plain, compressed(plain)):
        stored = with_record(record, data)
        assert split_record(stored) == (record, data)
        assert codec().read("7", stored) == cart
        assert split(stored) == split(data)


def test_a_state_without_a_record_is_stored_as_ever() -> None:
    for data in (codec().write(Cart()), compressed(codec().write(Cart({"x" * 2000: 1})))):
        assert split_record(data) == (b"", data)


def test_a_record_alone_is_a_state_of_defaults() -> None:
    stored = with_record(b"record", None)
    assert split_record(stored) == (b"record", b"")
    assert codec().read("7", stored) == Cart()
    assert split(stored) == (1, encode_value({}))


def test_a_record_that_is_cut_off_is_refused() -> None:
    stored = with_record(b"record", None)
    for data, why in (
        (stored[:6], "the length of its record is cut off"),
        (stored[:-1], "its record is cut off"),
        (with_record(b"a", stored), "compressed in way 02, not in way 01"),
    ):
        with pytest.raises(StateUnreadable, match=why):
            codec().read("7", data)
