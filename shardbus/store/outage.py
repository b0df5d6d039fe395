"""The log of a store that fails: one line when it begins to fail, one when it answers again.

Every caller gets its own error, and there may be thousands of them in a second. The log of the
store names the cause once, and again when the cause changes or after `REPEAT_S`.

A store may take some writes and refuse others. An outage is over when it takes a write and has
refused none for `QUIET_S`.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shardbus.errors import StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.store.trouble import Trouble

log = GuardedLog("shardbus.store")

REPEAT_S = 60.0
QUIET_S = 3.0


class Outage:
    """The failures of the store that `shown` names. `clock` returns seconds."""

    def __init__(self, shown: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self._since: float | None = None
        self._last = self._logged = 0.0
        self._what = ""

    def failed(self, what: str, hint: str = "") -> None:
        """Note a failure. `what` completes the sentence that begins with the store."""
        now = self._clock()
        new = self._since is None or what != self._what
        if self._since is None:
            self._since = now
        self._last, self._what = now, what
        if new or now - self._logged >= REPEAT_S:
            self._logged = now
            log.warning("the store %s %s%s", self._shown, what, f"; {hint}" if hint else "")

    def no_answer(
        self, seconds: float, trouble: Trouble | None, *, in_doubt: bool
    ) -> StoreUnavailable:
        """Note that a call got no answer in time; return its error. `trouble`: why the calls
        before it failed, None if they did not. `in_doubt`: the server may have run it."""
        trouble = trouble or Trouble("does not respond")
        self.failed(trouble.what, trouble.hint)
        return StoreUnavailable(
            f"{self._shown} gave no answer within {seconds:g} s: it {trouble.what}",
            hint=trouble.hint,
            definite=not in_doubt,
        )

    def answered(self) -> None:
        """Note that a write was answered. A full store answers reads."""
        if self._since is None:
            return
        now = self._clock()
        if now - self._last >= QUIET_S:
            log.info("the store %s works again, after %.0f s", self._shown, now - self._since)
            self._since = None
