"""What a node does every so often: coarse time, sweeps, reports, and the sign that its loop turns.

    twenty times a second   time goes on in every type, asks expire, drops are told, the cluster
                            thread hears that this loop turns
    about once a second     sweeps: mailboxes, ends, idle entities; loads, slow handlers, links that
                            are deaf

Each part is on its own. One that raises is a defect, and the error says where; but it concerns
neither the others nor the next beat, for a node that does not say that it turns is declared down,
and so would be the next one that gets its entities.

Source: docs/architecture.md; S1.60, S2.52; B.14.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shardbus.shells.load_sampling import report_loads

if TYPE_CHECKING:
    from shardbus.node.node import Node
    from shardbus.shells.region import RegionShell

log = logging.getLogger("shardbus.node")

EVERY_S = 0.05
SWEEP_TICKS = 20
"""A second, in ticks of 50 ms."""
QUIET_TICKS = 600
"""Half a minute: for so long one part's failures are told once."""


class Ticker:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._swept = 0
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until: dict[str, int] = {}

    def start(self) -> None:
        """The first beat; the others follow."""
        self._beat()

    def stop(self) -> None:
        """No beat any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        node = self._node
        tick = node.endpoint.clock.tick
        self._timer = node.loop.call_later(EVERY_S, self._beat)
        for kind in node.kinds.values():
            self._do(f"time of {kind.name}", tick, partial(kind.advance, tick))
        if tick - self._swept >= SWEEP_TICKS:
            self._swept = tick
            for kind in node.kinds.values():
                self._sweep(kind, tick)
            self._do("quarantine", tick, node.quarantine_stalled_peers)
        self._do("loopback", tick, node.loopback.expire)
        self._do("drops", tick, partial(node.drops.report, tick))
        self._do("refusals", tick, self._tell_refused)
        if node.watching is not None:
            node.watching.app_alive()

    def _sweep(self, kind: RegionShell, tick: int) -> None:
        node, host = self._node, kind.host
        for what, sweep in host.sweeps(tick).items():
            self._do(f"{what} of {kind.name}", tick, sweep)
        self._do(f"loads of {kind.name}", tick, partial(report_loads, kind, node, tick))
        running, limit = host.runner.running_handlers, kind.settings.slow_handler_after
        self._do(f"handlers of {kind.name}", tick, partial(node.slow.check, running, limit, tick))

    def _tell_refused(self) -> None:
        if line := self._node.refused.log_line(self._node.loop.time()):
            log.warning("%s", line)

    def _do(self, what: str, tick: int, part: Callable[[], object]) -> None:
        try:
            part()
        except Exception:
            if tick >= self._quiet_until.get(what, tick):
                self._quiet_until[what] = tick + QUIET_TICKS
                log.exception("%s: the periodic look failed, the others go on", what)
