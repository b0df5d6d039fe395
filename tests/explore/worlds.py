"""Every world that is explored, by name. `bounds.toml` says how far, and how much that visited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.explore.bridge_world import BridgeWorld
from tests.explore.client_world import ClientWorld
from tests.explore.cluster_world import ClusterWorld
from tests.explore.endpoint_world import EndpointWorld
from tests.explore.entity_world import EntityWorld
from tests.explore.explorer import World
from tests.explore.http_world import HttpWorld
from tests.explore.lease_world import LeaseWorld
from tests.explore.membership_world import AdmissionWorld, SingletonWorld
from tests.explore.phase_world import PhaseWorld
from tests.explore.postgres_world import PostgresWorld
from tests.explore.queue_world import QueueWorld
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
DRAINED = "tell x", "tell y", "hold x", "release x", "room", "break", "open"
"""Messages that wait for an entity leave in portions."""
SLICED = "many x", "tell x", "part", "pause", "resume", "break", "open", "close"
AWAY = "ask x", "tell x", "second", "cancel", "restore B", "die B"
"""A client of one node that lives, whose connection is broken."""
GUIDED = "ask x", "tell x", "home A", "leave A", "leave B", "die A", "die B", "cut A", "B has"
"""A client whose contact, B, lacks the type."""
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
LEAVING = "tell x", "ask x", "break A", "mend A", "leave A", "back A", "lose A", "gone A", "home B"
"""A home that leaves while messages for it have not left."""
ASKED = "ask all", "ask first", "tell hash", "cancel", "row 1 A", "row 2 B", "gone A", "second"
"""Asks of several instances, some of them without a home."""
CARRIED = "ask twice", "ask save", "ok", "unknown", "refused", "stop", "start"

MODES = "buffer", "ordered", "forward", "drop"
UNDER_WAY = "stall n4 n2", "move n3"
"""A move with a sender whose messages come late to the old home."""


def after(make: Callable[[], World], *events: str) -> Callable[[], World]:
    """Return a maker of a world in which these events have happened."""

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
    "router, leaving": after(partial(RouterWorld, *LEAVING), "home A"),
    "instances": InstanceWorld,
    "instances, asked": after(partial(InstanceWorld, *ASKED), "count 2"),
    "instances, at home": after(InstanceWorld, "count 2", "row 1 A", "row 2 B", "tell nearest"),
    "session": SessionWorld,
    "session, connection": partial(SessionWorld, *CONNECTION),
    "session, held": partial(SessionWorld, *HELD),
    "session, drained": after(
        partial(SessionWorld, *DRAINED), "hold x", "large x", "large x", "full"
    ),
    "session, sliced": partial(SessionWorld, *SLICED, slices=2),
    "endpoints": EndpointWorld,
    "endpoints, by name": partial(EndpointWorld, "service"),
    "client": ClientWorld,
    "client, away": after(partial(ClientWorld, *AWAY), "die A", "cut B"),
    "client, guided": after(partial(ClientWorld, *GUIDED), "B lacks", "home none"),
    "entity": EntityWorld,
    "entity, put aside": partial(EntityWorld, *PUT_ASIDE),
    "entity, operator": partial(EntityWorld, *OPERATOR),
    "remembered entity": partial(EntityWorld, *REMEMBERED, remember=True),
    "carried entity": partial(EntityWorld, *CARRIED, carry=True),
    "http connections": HttpWorld,
    "thread bridge": BridgeWorld,
    "group commit": StoreWorld,
    "postgres": PostgresWorld,
    "leases": LeaseWorld,
    "work queue": QueueWorld,
    "suspension": SuspensionWorld,
    "shutdown phase": PhaseWorld,
    "singleton": SingletonWorld,
    "admission": AdmissionWorld,
    "cluster": ClusterWorld,
    **{f"sharding {mode}": partial(ShardingWorld, mode) for mode in MODES},
    **{f"sharding {mode}, under way": partial(ShardingWorld, mode, *UNDER_WAY) for mode in MODES},
}
