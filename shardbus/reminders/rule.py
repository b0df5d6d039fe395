"""When a reminder is due: once, at an interval, or by a cron expression.

Times are milliseconds since 1970 in UTC, and are compared in UTC only. An interval counts elapsed
time: a day is 24 hours. A cron expression goes by the wall clock of its zone, under the rules of
Debian's cron:

| the night | `30 2 * * *`, a time | `0 * * * *`, `*/30 * * * *`: every hour |
|---|---|---|
| 02:00 to 03:00 is missing | once, at 03:00 | the missing hour is left out |
| 02:00 to 03:00 is doubled | once, in the first | in both |

Five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday). If both
days are given and neither begins with `*`, a day fits that matches one of them, otherwise both.

Source: docs/how-to/reminders.md; docs/dependencies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from msgspec import Struct

from shardbus.error_text import described
from shardbus.errors import ConfigError
from shardbus.ids import check_text
from shardbus.quantities import counted

Late = Literal["once", "all", "skip"]
LATE_POLICIES: tuple[Late, ...] = get_args(Late)
EVERY_MIN_MS = 1000
"""The shortest interval."""
MOMENT_MIN = -62_135_510_400_000
MOMENT_MAX = 253_402_214_400_000
"""The second day of the year 1 and the last one of 9999 begin: a datetime can hold the moments
between them in every zone."""
FIELDS = "minute, hour, day of the month, month, day of the week"


class Rule(Struct, frozen=True, array_like=True):
    """How a reminder repeats: neither `every_ms` nor `cron` is once. `late`: the policy for moments
    that have passed. `jitter_ms`: each firing is put off by up to this."""

    every_ms: int = 0
    cron: str = ""
    tz: str = "UTC"
    late: Late = "once"
    jitter_ms: int = 0

    @property
    def repeats(self) -> bool:
        """True if it is due more than once."""
        return bool(self.every_ms or self.cron)

    def after(self, moment: int) -> int | None:
        """Return the next moment after this one, None if there is none."""
        following: int | None = None
        if self.every_ms:
            following = moment + self.every_ms
        elif self.cron:
            following = next(moments(self.cron, self.tz, moment), None)
        return following if following is None or following <= MOMENT_MAX else None

    def after_missed(self, moment: int, now: int) -> int | None:
        """Return the first moment of those after `moment` that comes after `now`."""
        if self.every_ms and moment <= now:
            moment += (now - moment) // self.every_ms * self.every_ms
        return self.after(moment if self.every_ms else max(moment, now))


def moments(cron: str, tz: str, after: int) -> Iterator[int]:
    """Yield the moments of a cron expression after a time.

    Raises:
        ConfigError: the zone or the expression is none, or `cronsim` is not installed.
    """
    begin = datetime_of(after).astimezone(zone(tz))
    try:
        times = cron_simulator()(cron, begin)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"cron {cron!r:.80}: {described(error)}", hint=FIELDS) from None
    last = after
    for time in times:
        moment = round(time.astimezone(UTC).timestamp()) * 1000
        if moment > last:  # the two times of a doubled hour are equal as times of one zone
            last = moment
            yield moment


def cron_simulator() -> Callable[[str, datetime], Iterator[datetime]]:
    """Return the class of cronsim.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from cronsim import CronSim
    except ImportError:
        raise ConfigError(
            "cron expressions need cronsim", hint="pip install 'shardbus[cron]'"
        ) from None
    simulator: Callable[[str, datetime], Iterator[datetime]] = CronSim
    return simulator


@lru_cache(maxsize=256)
def zone(tz: str) -> ZoneInfo:
    """Return a time zone. Raises ConfigError if there is none of this name."""
    try:
        return ZoneInfo(tz)
    except Exception as error:
        hint = "a name as Europe/Berlin; pip install tzdata if the system has no zones"
        raise ConfigError(f"tz {tz!r:.60}: {described(error)}", hint=hint) from None


def checked(rule: Rule) -> Rule:
    """Return a rule that can be kept.

    Raises:
        ConfigError: it cannot; the message names the argument.
    """
    tz, cron = check_text("tz", rule.tz), check_text("cron", rule.cron)
    if rule.late not in LATE_POLICIES:
        raise ConfigError(f"late={rule.late!r:.40} is not one of {', '.join(LATE_POLICIES)}")
    if rule.every_ms and rule.cron:
        raise ConfigError("a reminder has `every` or `cron`, not both")
    if rule.every_ms and rule.every_ms < EVERY_MIN_MS:
        raise ConfigError(
            f"every is {rule.every_ms / 1000:g} s; it is {EVERY_MIN_MS // 1000} s or more"
        )
    if rule.jitter_ms < 0:
        raise ConfigError("jitter is below 0")
    zone(rule.tz)
    if rule.cron and len(rule.cron.split()) != 5:
        fields = counted(len(rule.cron.split()), "field")
        raise ConfigError(f"cron {rule.cron!r:.80} has {fields}, not 5", hint=FIELDS)
    late = LATE_POLICIES[LATE_POLICIES.index(rule.late)]
    return Rule(rule.every_ms, cron, tz, late, rule.jitter_ms)


def datetime_of(moment: int) -> datetime:
    """Return a moment in UTC; one that no datetime can hold is the nearest that can be held."""
    return datetime.fromtimestamp(min(max(moment, MOMENT_MIN), MOMENT_MAX) / 1000, UTC)
