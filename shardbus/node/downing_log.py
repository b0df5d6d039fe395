"""Downing on this node: the log of decisions, the settings that every node must share, and the
check of the settings before the node starts.

Source: docs/downing.md; S1.59, S2.6.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from datetime import UTC, datetime

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.http.page import Json
from shardbus.membership import view as seen
from shardbus.membership.downing.split import Decision
from shardbus.membership.downing.strategies import strategy_of
from shardbus.node.event_log import event_fields, sentence

log = GuardedLog("shardbus.node")

KEPT = 20
QUIET = (seen.ConvergenceChanged, seen.RoleLeaderChanged)
SHARED = (
    "strategy",
    "role",
    "static_quorum_size",
    "down_if_alone",
    "unsafe_auto_down_after",
)
"""Settings that both sides of a split must have in common."""


class DowningLog:
    """The last decisions of this node, oldest first, and the log of the cluster's events."""

    def __init__(self) -> None:
        self._kept: deque[Json] = deque(maxlen=KEPT)

    def record(self, event: seen.DomainEvent) -> None:
        """Log an event, and keep it if it is a decision."""
        if not isinstance(event, seen.DowningDecided):
            log.log(_level_of(event), "%s", sentence(event), extra=event_fields(event))
            return
        log.warning("%s", sentence(event), extra=event_fields(event))
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._kept.append({"at": at, **_shown(event.decision)})

    def page(self) -> list[Json]:
        """The kept decisions, in the shape of the public JSON."""
        return list(self._kept)


def _level_of(event: seen.DomainEvent) -> int:
    if isinstance(event, seen.OtherClustersChanged) and event.clusters:
        return logging.ERROR
    if isinstance(event, seen.RivalCluster) and not event.gone:
        return logging.ERROR
    if isinstance(event, seen.FoundingWaits):
        return logging.WARNING
    return logging.DEBUG if isinstance(event, QUIET) else logging.INFO


def _shown(decision: Decision) -> Json:
    split = decision.split
    sides = {
        "side": split.side,
        "cut_off": split.cut,
        "gone": split.gone,
        "bad_links": split.broken,
        "votes_here": split.ours,
        "votes_there": split.theirs,
        "oldest": split.elders,
        "down": decision.down,
    }
    return {
        "strategy": decision.rule,
        "outcome": decision.outcome.value,
        "reason": decision.reason,
        **{name: [str(node) for node in nodes] for name, nodes in sides.items()},
    }


def fingerprint(settings: ClusterSettings) -> dict[str, str]:
    """The settings that must be equal on a node that joins. The side of a split that stays waits
    until the others have suspended, by its own `suspend_after`."""
    shared = {f"cluster.downing.{name}": str(getattr(settings.downing, name)) for name in SHARED}
    shared["cluster.suspend_after"] = f"{settings.contact_lifetime:g} s"
    return shared


def check_downing(settings: DowningSettings, types: Collection[str]) -> None:
    """Load the strategy, which may be the application's; warn of downing by timeout, or refuse it.

    Raises:
        ConfigError: the strategy cannot be loaded; or downing is by timeout and there are entity
            types, whose entities would run on both sides of a split.
    """
    strategy_of(settings)
    after = settings.unsafe_auto_down_after
    if not after:
        return
    if types and not settings.unsafe_auto_down_with_sharding:
        raise ConfigError(
            "cluster.downing.unsafe_auto_down_after is set and entities are sharded: "
            "after a split both sides would run the same entities",
            hint="choose a cluster.downing.strategy, or set unsafe_auto_down_with_sharding = true",
        )
    log.warning(
        "UNSAFE: members that are unreachable for %g s are downed on both sides of a split, "
        "which then go on as two clusters; no strategy decides (unsafe_auto_down_after)",
        after,
    )
