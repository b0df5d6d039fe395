"""Keeps the deletion cost of this node's pod: the pods of the oldest nodes are to go last.

When a Deployment of Kubernetes shrinks, or replaces the pods of an old version one by one, it
chooses among those that are ready the one with the lowest deletion cost. Without costs it prefers
the youngest pods of the fullest machines, and may take the oldest node at any time. That node runs
the coordinators, and each node that takes them over may be the next to go.

    age of the node    oldest    next    ...    oldest number n    younger
    cost               100 n     100 (n - 1)    100                0

So the coordinators of a cluster that is replaced as a whole move once: when the last old node goes.
Age is of the membership, not of the pod: a container that started again in its pod is young.

The cost is written when it changes: at the start, and when one of the oldest nodes ends. An attempt
that fails is counted, logged once, and repeated after a pause that doubles, up to `ATTEMPTS` times.
Then the log has an error, and the next change of the cost begins anew. Nothing else of the node
depends on it.

Source: docs/how-to/deploy.md; B.146.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shardbus.backoff import doubling
from shardbus.guarded_log import GuardedLog
from shardbus.membership.member import WORKING, age_order
from shardbus.membership.view import MembershipView
from shardbus.task_set import TaskSet
from shardbus.transport.kubernetes_api import ApiFailure

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
STEP = 100
"""Between the costs of two nodes."""
ATTEMPTS = 12
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 60.0
"""Twelve attempts take some six minutes."""

log = GuardedLog("shardbus.node")


def deletion_cost(view: MembershipView, oldest: int) -> int | None:
    """Return the cost of this node's pod, if the `oldest` nodes of the cluster have one; None if
    this node is no working member, so that its pod keeps its cost."""
    mine = view.member(view.me)
    if mine is None or mine.status not in WORKING:
        return None
    working = (member for member in view.members if member.status in WORKING)
    older = sum(age_order(member) < age_order(mine) for member in working)
    return STEP * max(0, oldest - older)


class PodDeletionCost:
    """Writes the cost, if the `oldest` nodes of the cluster have one. `annotate` sets an annotation
    of the pod."""

    def __init__(
        self, oldest: int, annotate: Callable[[str, str], Awaitable[ApiFailure | None]]
    ) -> None:
        self._oldest, self._annotate = oldest, annotate
        self._tasks = TaskSet()
        self._cost: int | None = None
        """The cost that the pod must have."""
        self.written: int | None = None
        """The cost that the pod has; None if that is not known."""
        self.failures = 0

    def on_view(self, view: MembershipView) -> None:
        """Write the cost if this view changes it."""
        cost = deletion_cost(view, self._oldest)
        if cost is None or cost == self._cost:
            return
        self._cost = cost
        if not self._tasks:
            self._tasks.spawn(self._write(), name="deletion cost")

    def stop(self) -> None:
        """Write nothing more."""
        self._tasks.cancel()

    async def _write(self) -> None:
        """Write until the pod has the cost that it must have, or until that is given up."""
        failures, tried, reported = 0, self._cost, ""
        while (cost := self._cost) != self.written:
            failures, tried = (failures if cost == tried else 0), cost
            failure = await self._annotate(ANNOTATION, str(cost))
            if failure is None:
                self.written, reported = cost, ""
                log.info("the pod of this node has the deletion cost %s", cost)
                continue
            failures += 1
            self.failures += 1
            self.written = None  # a request without an answer may have been carried out
            if cost == self._cost and (failure.final or failures == ATTEMPTS):
                log.error("the deletion cost of the pod stays as it is: %s", failure.text)
                return
            if failure.text != reported:
                log.warning("the deletion cost is not written yet: %s", failure.text)
            reported = failure.text
            await asyncio.sleep(doubling(PAUSE_FIRST_S, PAUSE_MAX_S, failures))
