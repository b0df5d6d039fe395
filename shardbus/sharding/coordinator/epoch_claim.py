"""How a coordinator comes to rule: one epoch, claimed in the store before anything is decided.

    WAITING ──Prepare──> LOADING ──TableLoaded──> READY ──Start──> CLAIMING ──EpochClaimed──> RULING
       └──────Start─────────^ StoreFailed: after a backoff            │  ^
                                                                      │  │ StoreFailed: the same
    and from anywhere to STOPPED, for good; from RULING               └──┘ epoch, for the lost claim
    by way of RETIRING, if it is asked to Retire: what                     may have worked;
    is being written is finished, nothing else is done.                    EpochRefused: one above

Prepare is for a coordinator whose turn is about to come, while another one still rules: the table
is loaded, and Start claims at once. Start alone does both.

The epoch is one more than the highest of the store and of gossip. Attempts are spaced by a backoff
that starts at a tenth of the setting, doubles, and ends at five times the setting.

Source: S0.33, S2.61; B.97; docs/architecture.md.
"""

from __future__ import annotations

from enum import Enum

from shardbus.sharding.events import (
    ClaimEpoch,
    EpochClaimed,
    EpochRefused,
    EpochSeen,
    LoadTable,
    Note,
    Prepare,
    Retire,
    Start,
    Stop,
    StoreFailed,
    TableLoaded,
)

BACKOFF_FIRST, BACKOFF_LAST = 0.1, 5.0
"""First and longest wait, as parts of the setting."""

TenureEvent = (
    Prepare | Start | TableLoaded | EpochClaimed | EpochRefused | StoreFailed | EpochSeen | Retire
)
TenureEffect = LoadTable | ClaimEpoch | Stop | Note


class CoordinatorState(Enum):
    """Where a coordinator stands."""

    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    CLAIMING = "claiming"
    RULING = "ruling"
    RETIRING = "retiring"
    STOPPED = "stopped"


def backoff(setting: float, attempts: int) -> float:
    """Seconds to wait after the `attempts`-th failure in a row, from 1."""
    return min(setting * BACKOFF_LAST, setting * BACKOFF_FIRST * 2.0 ** min(attempts - 1, 30))


class EpochClaim:
    """The way to the throne. `epoch` is the one claimed or held, 0 before."""

    __slots__ = (
        "_attempts", "_backoff", "_floor", "_is_due", "_layout", "_retry_at", "_stored", "epoch",
        "forgotten", "reign",
    )  # fmt: skip

    def __init__(self, layout: str, failure_backoff: float) -> None:
        self.reign = CoordinatorState.WAITING
        self.epoch = 0
        self.forgotten = False
        """Whether the store has lost a table: gossip knows of a higher epoch than it."""
        self._layout = layout
        self._backoff = failure_backoff
        self._floor = 0
        self._stored = 0
        self._is_due = False
        """Whether Start has come."""
        self._attempts = 0
        self._retry_at: float | None = None

    def deadline(self) -> float | None:
        """When the store is asked again."""
        return self._retry_at

    def handle(self, event: TenureEvent, now: float) -> list[TenureEffect]:
        """Take in what the store or the node says; `reign` tells how it ended."""
        match event, self.reign:
            case Prepare(epoch_floor), CoordinatorState.WAITING:
                return self._load(epoch_floor)
            case Start(epoch_floor), CoordinatorState.WAITING:
                self._is_due = True
                return self._load(epoch_floor)
            case Start(epoch_floor), (CoordinatorState.LOADING | CoordinatorState.READY):
                self._is_due = True
                self._floor = max(self._floor, epoch_floor)
                return self._claim_stored() if self.reign is CoordinatorState.READY else []
            case TableLoaded(table), CoordinatorState.LOADING:
                if table is not None and table.homes and table.layout != self._layout:
                    return self.stop(
                        f"the stored table is of layout {table.layout}, this node's is"
                        f" {self._layout}"
                    )
                self._stored = table.epoch if table is not None else 0
                self.reign = CoordinatorState.READY
                return self._claim_stored() if self._is_due else []
            case EpochClaimed(_), CoordinatorState.CLAIMING:
                self.reign = CoordinatorState.RULING
                self._attempts = 0
                return [Note("epoch_claimed", str(self.epoch))]
            case EpochRefused(stored), CoordinatorState.CLAIMING:
                self._floor = max(self._floor, stored)
                self.epoch = 0
                self._wait(now)
                return [Note("epoch_refused", f"the store is at {stored}")]
            case StoreFailed(reason), (CoordinatorState.LOADING | CoordinatorState.CLAIMING):
                self._wait(now)
                return [Note("store_failed", reason)]
            case EpochSeen(epoch), _:
                return self._see(epoch)
            case Retire(), CoordinatorState.RULING:
                self.reign = CoordinatorState.RETIRING
                return []
            case Retire(), (
                CoordinatorState.WAITING
                | CoordinatorState.LOADING
                | CoordinatorState.READY
                | CoordinatorState.CLAIMING
            ):
                return self.stop("it never ruled")
            case _:
                return []

    def tick(self, now: float) -> list[TenureEffect]:
        """Ask the store again if it is time."""
        if self._retry_at is None or now < self._retry_at:
            return []
        self._retry_at = None
        if self.reign is CoordinatorState.LOADING:
            return [LoadTable()]
        if self.reign is CoordinatorState.CLAIMING:
            return [ClaimEpoch(self.epoch, self._layout)] if self.epoch else self._claim(0)
        return []

    def stop(self, reason: str) -> list[TenureEffect]:
        """Rule no more."""
        self.reign = CoordinatorState.STOPPED
        self._retry_at = None
        return [Stop(reason)]

    def _see(self, epoch: int) -> list[TenureEffect]:
        """Gossip knows of `epoch`: whoever rules under a lower one is over."""
        if (
            self.reign in (CoordinatorState.RULING, CoordinatorState.RETIRING)
            and epoch > self.epoch
        ):
            return self.stop(f"a coordinator with epoch {epoch} rules, this one has {self.epoch}")
        self._floor = max(self._floor, epoch)
        return []

    def _load(self, epoch_floor: int) -> list[TenureEffect]:
        self._floor = max(self._floor, epoch_floor)
        self.reign = CoordinatorState.LOADING
        return [LoadTable()]

    def _claim_stored(self) -> list[TenureEffect]:
        self.forgotten = self._stored < self._floor
        return self._claim(self._stored)

    def _claim(self, stored: int) -> list[TenureEffect]:
        self.reign = CoordinatorState.CLAIMING
        self._floor = max(self._floor, stored)
        self.epoch = self._floor + 1
        return [ClaimEpoch(self.epoch, self._layout)]

    def _wait(self, now: float) -> None:
        self._attempts += 1
        self._retry_at = now + backoff(self._backoff, self._attempts)
