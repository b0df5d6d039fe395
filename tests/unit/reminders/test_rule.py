"""When reminders are due: intervals, cron expressions, zones, and the two nights of a year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.reminders.rule import (
    MOMENT_MAX,
    MOMENT_MIN,
    Rule,
    checked,
    datetime_of,
    moments,
    zone,
)

NEW_YORK, BERLIN = "America/New_York", "Europe/Berlin"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def utc(cron: str, tz: str, after: str, count: int) -> list[str]:
    times = islice(moments(cron, tz, ms(after)), count)
    return [datetime.fromtimestamp(moment / 1000, UTC).strftime("%d %H:%M") for moment in times]


@pytest.mark.parametrize(
    ("cron", "tz", "after", "expected"),
    [
        ("0 9 * * 1", BERLIN, "2026-06-10 00:00", ["15 07:00", "22 07:00"]),
        ("0 9 * * 1", BERLIN, "2026-12-10 00:00", ["14 08:00", "21 08:00"]),
        # New York, 2 November 2025: 01:00 to 02:00 comes twice.
        ("30 1 * * *", NEW_YORK, "2025-11-01 12:00", ["02 05:30", "03 06:30"]),
        ("0 * * * *", NEW_YORK, "2025-11-02 04:30", ["02 05:00", "02 06:00", "02 07:00"]),
        ("*/30 * * * *", NEW_YORK, "2025-11-02 05:10", ["02 05:30", "02 06:00", "02 06:30"]),
        # New York, 9 March 2025: 02:00 to 03:00 is missing.
        ("30 2 * * *", NEW_YORK, "2025-03-08 12:00", ["09 07:00", "10 06:30"]),
        ("0 * * * *", NEW_YORK, "2025-03-09 05:30", ["09 06:00", "09 07:00", "09 08:00"]),
        ("0 */2 * * *", NEW_YORK, "2025-03-09 04:30", ["09 05:00", "09 08:00", "09 10:00"]),
        # Days: both count if one begins with a star, else either.
        ("0 0 */2 * 1", "UTC", "2025-03-08 12:00", ["17 00:00", "31 00:00"]),
        ("0 0 13 * 5", "UTC", "2025-03-12 12:00", ["13 00:00", "14 00:00", "21 00:00"]),
    ],
)
def test_cron_by_the_clock_on_the_wall(cron: str, tz: str, after: str, expected: list[str]) -> None:
    assert utc(cron, tz, after, len(expected)) == expected


@given(st.integers(0, 2**31), st.sampled_from(["30 1 * * *", "*/20 2 * * *", "5 * * * *"]))
def test_moments_grow_and_follow_from_each_other(after: int, cron: str) -> None:
    times = list(islice(moments(cron, NEW_YORK, after * 1000), 5))
    assert times == sorted(set(times))
    assert times[0] > after * 1000
    for moment, following in pairwise(times):
        assert Rule(cron=cron, tz=NEW_YORK).after(moment) == following


def test_a_day_of_an_interval_has_24_hours() -> None:
    rule = Rule(every_ms=86_400_000)
    assert rule.after(ms("2025-03-08 12:00")) == ms("2025-03-09 12:00")


@given(st.integers(1000, 10**7), st.integers(0, 10**12), st.integers(0, 10**12))
def test_missed_moments_are_left_behind_at_once(every: int, moment: int, past: int) -> None:
    now = moment + past
    following = Rule(every_ms=every).after_missed(moment, now)
    assert following is not None
    assert following > now
    assert following - now <= every
    assert (following - moment) % every == 0


def test_once_has_no_next_moment() -> None:
    assert Rule().after(5) is None
    assert Rule().after_missed(5, 50) is None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(every_ms=999), "every is 0.999 s"),
        (Rule(every_ms=5000, cron="* * * * *"), "not both"),
        (Rule(late="never"), "once, all, skip"),  # type: ignore[arg-type]
        (Rule(tz="Europe/Berlim"), "tz 'Europe/Berlim'"),
        (Rule(cron="* * * * * *"), "6 fields, not 5"),
        (Rule(cron="@daily"), "1 field, not 5"),
        (Rule(jitter_ms=-1), "jitter"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(rule: Rule, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(rule)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "61 * * * *", "a b c d e"])
def test_an_impossible_expression_is_refused(cron: str) -> None:
    with pytest.raises(ConfigError, match="cron"):
        next(moments(cron, "UTC", 0))


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["UTC", NEW_YORK, "Asia/Tokyo"]))
def test_each_moment_has_a_datetime_in_every_zone(moment: int, tz: str) -> None:
    shown = datetime_of(moment)
    assert shown.astimezone(zone(tz)) == shown
    if MOMENT_MIN <= moment <= MOMENT_MAX:
        assert abs(shown.timestamp() * 1000 - moment) < 1


def test_a_rule_is_kept_with_plain_texts() -> None:
    text: Any = type("Text", (str,), {})
    kept = checked(Rule(0, text("0 9 * * *"), text("UTC"), text("all")))
    assert [type(each) for each in (kept.cron, kept.tz, kept.late)] == [str, str, str]
    for rule in (Rule(tz="UTC\ud800"), Rule(cron="* * * * \ud800"), Rule(tz=cast("Any", None))):
        with pytest.raises(ConfigError):
            checked(rule)


def test_an_end_of_time_ends_it() -> None:
    assert (
        Rule(every_ms=round(timedelta(days=1).total_seconds() * 1000)).after(253_402_300_700_000)
        is None
    )
