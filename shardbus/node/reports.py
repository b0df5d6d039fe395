"""The reports of one node about its work.

    vitals    spread with the gossip: load, memory, lag
    loads     to the coordinators of types that are balanced by load
    pod_cost  to Kubernetes, which pods to delete first; None unless this node's pod gets one

Source: docs/how-to/operate.md; S3.20, S3.49.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from shardbus.config.settings import KubernetesSettings
from shardbus.ids import NodeId
from shardbus.membership.view import MembershipView
from shardbus.membership.vitals import Vitals
from shardbus.shells.load_reports import LoadReports, Send
from shardbus.shells.pod_deletion_cost import PodDeletionCost
from shardbus.shells.region import RegionShell
from shardbus.shells.vitals import VitalsSampler
from shardbus.transport.environment import Environment
from shardbus.transport.kubernetes_api import PodApi


class NodeReports:
    """The reports of node `me`. `publish` spreads vitals; `send` reaches a coordinator."""

    def __init__(
        self,
        me: NodeId,
        regions: dict[str, RegionShell],
        environment: Environment,
        now: Callable[[], float],
        publish: Callable[[Vitals], None],
        send: Send,
        kubernetes: KubernetesSettings,
    ) -> None:
        self.vitals = VitalsSampler(regions, environment, now, publish)
        self.loads = LoadReports(me, regions, environment, now, send)
        self.pod_cost: PodDeletionCost | None = None
        if kubernetes.deletion_costs:
            annotate = PodApi(kubernetes, os.environ).annotate
            self.pod_cost = PodDeletionCost(kubernetes.deletion_costs, annotate)

    def on_view(self, view: MembershipView) -> None:
        """Apply a new view of membership."""
        if self.pod_cost is not None:
            self.pod_cost.on_view(view)

    def stop(self) -> None:
        """Report no more."""
        self.vitals.stop()
        if self.pod_cost is not None:
            self.pod_cost.stop()
