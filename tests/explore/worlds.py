"""Every world that is explored, by name. `bounds.toml` says how far, and how much that visited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.explore.bridge_world import BridgeWorld
from tests.explore.cluster_world import ClusterWorld
from tests.explore.endpoint_world import EndpointWorld
from tests.explore.entity_world import EntityWorld
from tests.explore.explorer import World
from tests.explore.lease_world import LeaseWorld
from tests.explore.membership_world import AdmissionWorld, SingletonWorld
from tests.explore.phase_world import PhaseWorld
from tests.explore.postgres_world import PostgresWorld
from tests.explore.routing_world import InstanceWorld, RouterWorld
from tests.explore.session_world import SessionWorld
from tests.explore.sharding_world import ShardingWorld
from tests.explore.store_world import StoreWorld
from tests.explore.suspension_world import SuspensionWorld

CONNECTION = (
    "tell x",
    "ask x",
    "break",
    "open",
    "full",
    "room",
    "stop",
    "go",
    "lose",
    "twice",
    "close",
)
HELD = "tell x", "ask x", "hold x", "release x", "drained", "await x", "break", "open", "close"
PUT_ASIDE = "ask pipe", "ask stash", "ask fail", "ok", "work", "unstash", "stop", "start"
OPERATOR = "ask add", "ask save", "change", "change if", "ok", "unknown", "wait", "stop"
REMEMBERED = (
    "ask add",
    "ask fail",
    "passivate",
    "change",
    "ok",
    "unknown",
    "stop",
    "start",
    "wait",
    "idle",
)
CARRIED = "ask twice", "ask save", "ok", "unknown", "refused", "stop", "start"

MODES = "buffer", "ordered", "forward", "drop"
UNDER_WAY = "stall n4 n2", "move n3"
"""A move with a sender whose messages come late to the old home."""


def after(make: Callable[[], World], *events: str) -> Callable[[], World]:
    """Return what makes a world in which these events have happened."""

    def begin() -> World:
        world = make()
        for event in events:
            world.do(event)
        world.said.clear()
        return world

    return begin


WORLDS: dict[str, Callable[[], World]] = {
    "router": RouterWorld,
    "router, at home": after(RouterWorld, "home A"),
    "instances": InstanceWorld,
    "instances, at home": after(InstanceWorld, "count 2", "row 1 A", "row 2 B", "tell nearest"),
    "session": SessionWorld,
    "session, connection": partial(SessionWorld, *CONNECTION),
    "session, held": partial(SessionWorld, *HELD),
    "endpoints": EndpointWorld,
    "entity": EntityWorld,
    "entity, put aside": partial(EntityWorld, *PUT_ASIDE),
    "entity, operator": partial(EntityWorld, *OPERATOR),
    "remembered entity": partial(EntityWorld, *REMEMBERED, remember=True),
    "carried entity": partial(EntityWorld, *CARRIED, carry=True),
    "thread bridge": BridgeWorld,
    "group commit": StoreWorld,
    "postgres": PostgresWorld,
    "leases": LeaseWorld,
    "suspension": SuspensionWorld,
    "shutdown phase": PhaseWorld,
    "singleton": SingletonWorld,
    "admission": AdmissionWorld,
    "cluster": ClusterWorld,
    **{f"sharding {mode}": partial(ShardingWorld, mode) for mode in MODES},
    **{f"sharding {mode}, under way": partial(ShardingWorld, mode, *UNDER_WAY) for mode in MODES},
}
