"""The reminders that `context.remind` makes of its arguments, and those that it refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus import Entity, ShardBus, handler
from shardbus.entities.reminding import entry_of
from shardbus.errors import ConfigError
from shardbus.reminders.record import EMPTY, decoded, encoded, shown
from shardbus.reminders.rule import MOMENT_MAX
from tests.unit.declaring import declared

NOW = 1_790_000_000_000
FAR_EAST, FAR_WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
MOMENT = datetime(2026, 12, 24, 18, tzinfo=UTC)
NAN = float("nan")


class Text(str):
    """A text of an application's own class, which no encoder takes."""

    __slots__ = ()


class Order(Entity):
    @handler
    async def expire(self) -> None: ...


KIND = declared(ShardBus("shop"), Order, name="order")


def set_(name: Any = "expire", **when: Any) -> Any:
    return entry_of(KIND, NOW, "order/1", name, **when)


@pytest.mark.parametrize(
    "when",
    [
        {"at": datetime.max.replace(tzinfo=UTC)},
        {"at": datetime.max},
        {"at": datetime.max, "tz": "America/New_York"},
        {"at": datetime.max.replace(tzinfo=FAR_WEST)},
        {"at": datetime.min.replace(tzinfo=UTC)},
        {"at": datetime.min.replace(tzinfo=FAR_EAST)},
        {"at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"at": "2026-12-24"},
        {"every": timedelta.max},
        {"after": timedelta.max},
        {"after": timedelta(days=4000)},
        {"after": 1, "jitter_by": timedelta.max},
        {"after": timedelta(seconds=-1)},
        {"every": 1e300},
        {"every": float("inf")},
        {"every": NAN},
        {"after": NAN},
        {"after": []},
        {"after": 1, "tz": "UTC\ud800"},
        {"after": 1, "handler": "expire\ud800"},
        {"after": 1, "handler": 7},
    ],
    ids=str,
)
def test_a_reminder_that_could_not_be_kept_or_listed_is_refused(when: Any) -> None:
    with pytest.raises(ConfigError):
        set_(**when)


@pytest.mark.parametrize("name", ["", "n" * 129, "a\ud800", None, 7, b"expire"])
def test_a_name_that_cannot_be_stored_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="the name of a reminder"):
        set_(name, handler="expire", after=1)


@given(st.datetimes(), st.sampled_from([UTC, FAR_EAST, FAR_WEST, ZoneInfo("Europe/Berlin")]))
def test_a_reminder_that_is_set_can_be_stored_and_listed(at: datetime, zone: Any) -> None:
    try:
        entry = set_(at=at.replace(tzinfo=zone), every="1h", jitter_by="10m")
    except ConfigError:
        assert not 1971 < at.year < 9999
        return
    record = EMPTY.setting(entry)
    assert decoded(encoded(record)) == record
    assert 0 < record.due <= MOMENT_MAX
    assert shown(entry).due.year <= 9999


def test_spans_of_all_forms_are_the_same() -> None:
    for span in (90, 90.0, "90s", timedelta(seconds=90)):
        assert set_(after=span).moment == NOW + 90_000
    assert set_(every=timedelta(days=3650)).rule.every_ms == 315_360_000_000


def test_texts_of_a_class_of_texts_are_stored_as_plain_ones() -> None:
    entry = set_(Text("a"), handler=Text("expire"), at=MOMENT, tz=Text("UTC"), late=Text("all"))
    assert decoded(encoded(EMPTY.setting(entry))) == EMPTY.setting(entry)
