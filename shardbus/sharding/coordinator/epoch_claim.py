"""How a coordinator starts to rule: it claims one epoch in the store before it decides anything.

    WAITING ──Prepare──> LOADING ──TableLoaded──> READY ──Start──> CLAIMING ──EpochClaimed──> RULING
       └──────Start─────────^ StoreFailed: after a backoff            │  ^
                                                                      │  │ StoreFailed: the same
    and from every state to STOPPED, for good; from RULING            └──┘ epoch, for the lost claim
    by way of RETIRING, after Retire: the write under way                  may have worked;
    is finished, and nothing else is done.                                 EpochRefused: one above

Prepare is for a coordinator that is next while another one still rules: it loads the table, so that
Start claims at once. Start alone does both.

A coordinator also stops when the store has lost its claim. Its successor, here or elsewhere, claims
a higher epoch. So the store has an epoch above all its fences again, even if every node ends before
the next write.

The epoch is one more than the highest of the store and of gossip, and never above `EPOCH_MAX`: a
coordinator that finds the last one claims none. Attempts are spaced by a backoff that starts at a
tenth of `coordinator_failure_backoff`, doubles, and ends at five times the setting.

Source: S0.33, S2.61, B.97; docs/architecture.md.
"""

from __future__ import annotations

from enum import Enum

from shardbus.backoff import doubling
from shardbus.bounds import EPOCH_MAX
from shardbus.sharding import events as ev

BACKOFF_FIRST, BACKOFF_LAST = 0.1, 5.0
"""The first and the longest wait, as multiples of the setting."""
REMEDY = "stop the cluster and use `shardbus data repair`"

ClaimEvent = (
    ev.Prepare
    | ev.Start
    | ev.TableLoaded
    | ev.EpochClaimed
    | ev.EpochRefused
    | ev.StoreFailed
    | ev.EpochSeen
    | ev.ClaimLost
    | ev.Retire
)
ClaimEffect = ev.LoadTable | ev.ClaimEpoch | ev.Stop | ev.Note


class CoordinatorState(Enum):
    """The state of a coordinator."""

    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    CLAIMING = "claiming"
    RULING = "ruling"
    RETIRING = "retiring"
    STOPPED = "stopped"


def backoff(setting: float, attempts: int) -> float:
    """Return the seconds to wait after the `attempts`-th failure in a row, counted from 1."""
    return doubling(setting * BACKOFF_FIRST, setting * BACKOFF_LAST, attempts)


class EpochClaim:
    """The claim of one coordinator. `epoch` is the one claimed or held, 0 before."""

    __slots__ = (
        "_attempts", "_backoff", "_floor", "_is_due", "_layout", "_retry_at", "_stored", "epoch",
        "state", "table_lost",
    )  # fmt: skip

    def __init__(self, layout: str, failure_backoff: float) -> None:
        self.state = CoordinatorState.WAITING
        self.epoch = 0
        self.table_lost = False
        """Whether the store has lost a table: gossip shows a higher epoch than the store has."""
        self._layout = layout
        self._backoff = failure_backoff
        self._floor = 0
        self._stored = 0
        self._is_due = False
        """Whether Start has come."""
        self._attempts = 0
        self._retry_at: float | None = None

    def deadline(self) -> float | None:
        """Return when the next attempt is due."""
        return self._retry_at

    def handle(self, event: ClaimEvent, now: float) -> list[ClaimEffect]:
        """Handle an event; `state` has the result."""
        match event, self.state:
            case ev.Prepare(epoch_floor), CoordinatorState.WAITING:
                return self._load(epoch_floor)
            case ev.Start(epoch_floor), CoordinatorState.WAITING:
                self._is_due = True
                return self._load(epoch_floor)
            case ev.Start(epoch_floor), (CoordinatorState.LOADING | CoordinatorState.READY):
                self._is_due = True
                self._floor = max(self._floor, epoch_floor)
                return self._claim_stored(now) if self.state is CoordinatorState.READY else []
            case ev.TableLoaded(table), CoordinatorState.LOADING:
                if table is not None and table.homes and table.layout != self._layout:
                    return self.stop(
                        f"the stored table has layout {table.layout}, this node has {self._layout}:"
                        " declare the stored layout, or stop all nodes and run"
                        " `shardbus data remove TYPE --store URL`"
                    )
                self._stored = table.epoch if table is not None else 0
                self.state = CoordinatorState.READY
                return self._claim_stored(now) if self._is_due else []
            case ev.EpochClaimed(_), CoordinatorState.CLAIMING:
                self.state = CoordinatorState.RULING
                self._attempts = 0
                return [ev.Note("epoch_claimed", str(self.epoch), epoch=self.epoch)]
            case ev.EpochRefused(stored), CoordinatorState.CLAIMING:
                self._floor = max(self._floor, stored)
                self.epoch = 0
                self._wait(now)
                return [ev.Note("epoch_refused", f"the store is at {stored}")]
            case ev.StoreFailed(reason), (CoordinatorState.LOADING | CoordinatorState.CLAIMING):
                self._wait(now)
                return [ev.Note("store_failed", reason)]
            case ev.ClaimLost(), CoordinatorState.RULING:
                return self.stop(f"the store has lost the claim of epoch {self.epoch}")
            case ev.EpochSeen(epoch), _:
                return self._on_epoch_seen(epoch)
            case ev.Retire(), CoordinatorState.RULING:
                self.state = CoordinatorState.RETIRING
                return []
            case ev.Retire(), (
                CoordinatorState.WAITING
                | CoordinatorState.LOADING
                | CoordinatorState.READY
                | CoordinatorState.CLAIMING
            ):
                return self.stop("it has not ruled yet")
            case _:
                return []

    def tick(self, now: float) -> list[ClaimEffect]:
        """Repeat the failed attempt, if that is due."""
        if self._retry_at is None or now < self._retry_at:
            return []
        self._retry_at = None
        if self.state is CoordinatorState.LOADING:
            return [ev.LoadTable()]
        if self.state is CoordinatorState.CLAIMING:
            return [ev.ClaimEpoch(self.epoch, self._layout)] if self.epoch else self._claim(0, now)
        return []

    def stop(self, reason: str) -> list[ClaimEffect]:
        """Stop ruling, for good."""
        self.state = CoordinatorState.STOPPED
        self._retry_at = None
        return [ev.Stop(reason)]

    def _on_epoch_seen(self, epoch: int) -> list[ClaimEffect]:
        """Stop if this coordinator's epoch is below the epoch that gossip shows."""
        if (
            self.state in (CoordinatorState.RULING, CoordinatorState.RETIRING)
            and epoch > self.epoch
        ):
            return self.stop(f"a coordinator with epoch {epoch} rules, this one has {self.epoch}")
        self._floor = max(self._floor, epoch)
        return []

    def _load(self, epoch_floor: int) -> list[ClaimEffect]:
        self._floor = max(self._floor, epoch_floor)
        self.state = CoordinatorState.LOADING
        return [ev.LoadTable()]

    def _claim_stored(self, now: float) -> list[ClaimEffect]:
        self.table_lost = self._stored < self._floor
        return self._claim(self._stored, now)

    def _claim(self, stored: int, now: float) -> list[ClaimEffect]:
        self.state = CoordinatorState.CLAIMING
        self._floor = max(self._floor, stored)
        if self._floor >= EPOCH_MAX:
            self.epoch = 0
            self._wait(now)
            return [ev.Note("store_failed", f"{self._floor} is the last epoch: {REMEDY}")]
        self.epoch = self._floor + 1
        return [ev.ClaimEpoch(self.epoch, self._layout)]

    def _wait(self, now: float) -> None:
        self._attempts += 1
        self._retry_at = now + backoff(self._backoff, self._attempts)
