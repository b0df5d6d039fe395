"""A node as its pages see it: questions that several pages ask, and answers that readers share.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from shardbus.admin.brief import load_of
from shardbus.admin.examination import Examination
from shardbus.admin.load_history import ClusterHour, LoadHistory
from shardbus.admin.shard_control import ShardControl, agreed
from shardbus.admin.shard_map import ShardMaps
from shardbus.admin.shared_answer import SharedAnswer
from shardbus.errors import BufferFull, ConfigError, Refused, RequestError
from shardbus.http.page import Json
from shardbus.ids import NodeId
from shardbus.node.node import Node
from shardbus.reminders.rule import datetime_of
from shardbus.routing.refs import start_entity
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.region import RegionShell, region_of
from shardbus.task_set import TaskSet

LISTS_MAX = 4
"""Lists of entities, at most, that a node makes at once."""
OPENERS_MAX = 10_000
"""Open outboxes that a node remembers; above that it forgets the one that it met first."""
HOME_WITHIN_MS = 1500
"""For a shard to get a home, before an operator changes an entity in it."""


class OutboxOpeners:
    """The processes that have outboxes open, as this node has met them: each renews its lease
    through any node, so the members together know them all. `now` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._leases: dict[str, tuple[str, float]] = {}
        """By outbox: the process, and when its lease ends."""

    def record_lease(self, name: str, producer: str, ttl: float) -> None:
        """Note that a process has a lease for `ttl` seconds."""
        self._leases.pop(name, None)
        self._leases[name] = producer, self._now() + ttl
        if len(self._leases) > OPENERS_MAX:
            del self._leases[next(iter(self._leases))]

    def forget(self, name: str) -> None:
        """Note that a process has closed an outbox."""
        self._leases.pop(name, None)

    def rows(self) -> list[list[object]]:
        """Return the outboxes that are open: name, process, and seconds until its lease ends."""
        now = self._now()
        self._leases = {name: row for name, row in self._leases.items() if row[1] > now}
        return [[name, producer, until - now] for name, (producer, until) in self._leases.items()]


class Administration:
    """One node, as its operators see it.

    Args:
        origins: who set each setting, by its key (`config.loading.origins`).
        log: returns the last lines of the log.
    """

    def __init__(
        self,
        node: Node,
        origins: Mapping[str, str] | None = None,
        log: Callable[[], list[str]] | None = None,
    ) -> None:
        self.node, self.origins, self.log = node, origins, log
        self.shard_control = ShardControl(node.regions, node.rpc)
        self.examination = Examination(lambda: node.loop.time())
        self.was_ready = False
        self.last_maps: dict[str, Json] = {}
        """The last map of each type that a coordinator sent."""
        self.maps = ShardMaps()
        self.history = LoadHistory(lambda: node.loop.time(), lambda: load_of(node))
        self.hour = ClusterHour()
        self.openers = OutboxOpeners(lambda: node.loop.time())
        self.tasks = TaskSet()
        self.lists = 0
        """Lists of entities that are being made."""
        self._shared: dict[str, SharedAnswer[Json]] = {}

    async def shared(self, name: str, fresh_s: float, make: Callable[[], Awaitable[Json]]) -> Json:
        """Return the answer of this name, which is made at most once in `fresh_s` seconds."""
        return await self._shared.setdefault(name, SharedAnswer(make, fresh_s)).get()

    @property
    def status(self) -> str:
        """The status of this node as a member, or `joining`."""
        status = self.node.view.status if self.node.view is not None else None
        return status.value if status is not None else "joining"

    def status_for(self, node: NodeId) -> float:
        """Return the seconds for which a member has had its status."""
        return self.node.members.ages.status_for(node, self.node.loop.time())

    def region(self, type: str) -> RegionShell:
        """Return the region of a type.

        Raises:
            UnknownEntityType: there is none.
        """
        return region_of(self.node.regions, type)

    async def home_of(self, type: str, id: str) -> tuple[str, NodeId]:
        """Return the shard of an entity and its home. Without a home, a start of the entity
        allocates one; the start itself may fail.

        Raises:
            UnknownEntityType: this node has no such type.
            Refused: the shard has got no home in time.
        """
        region = self.region(type)
        shard, machine = region.router.route_of(id).shard, region.router.region
        if machine.home_of(shard) is None:
            with suppress(RequestError):
                await start_entity(region.router, id, HOME_WITHIN_MS)
        home = machine.home_of(shard)
        if home is None:
            raise Refused(f"shard {shard!r} of {type!r} has no home yet", hint="try again")
        return shard, home.node

    async def ask_home(
        self, question: str, type: str, id: str, *arguments: object, routed: str = ""
    ) -> tuple[Any, str, str]:
        """Return the answer of an entity's home, the shard and the home. A question of a home has
        the type, the shard and the id in front. `routed`: the id that has the shard, if it is
        another one.

        Raises:
            UnknownEntityType, Refused: as `home_of`. RequestError: the home does not answer.
                Others: the home refuses.
        """
        shard, home = await self.home_of(type, routed or id)
        answer = await self.node.rpc.ask(home, question, type, shard, id, *arguments, of=type)
        return agreed(answer), shard, str(home)

    @property
    def tables(self) -> list[str]:
        """The types that have a table of their own."""
        return [name for name, region in self.node.regions.items() if region.table is region]

    def member(self, text: str, *, itself: bool = False) -> NodeId:
        """Return the member of this name; with `itself`, `self` is this node.

        Raises:
            ConfigError: no member has that name.
        """
        view = self.node.view
        if itself and text == "self" and view is not None and view.status is not None:
            return self.node.me
        members = [m.node for m in view.members] if view is not None else []
        for node in members:
            if text in (str(node), str(node.address)):
                return node
        raise ConfigError(f"no member is called {text!r}", hint="`shardbus nodes` lists them")

    async def ask_all(
        self, question: str, *arguments: object, of: str = ""
    ) -> tuple[dict[NodeId, Any], list[str]]:
        """Return the answers of the members, and the members that did not answer in time."""
        members = self.node.rpc.members()
        answers = await self.node.rpc.ask_all(question, *arguments, of=of)
        return answers, [str(node) for node in members if node not in answers]

    async def ask_coordinator(self, question: str, type: str, *arguments: object) -> Any:
        """Return the answer of a type's coordinator; None without one."""
        region = self.region(type)
        if region.coordinator is None:
            return None
        try:
            return await self.node.rpc.ask(region.coordinator, question, type, *arguments, of=type)
        except RequestError:
            return None

    @contextmanager
    def list_of_entities(self) -> Iterator[None]:
        """Make a list of entities.

        Raises:
            BufferFull: `LISTS_MAX` lists are being made.
        """
        if self.lists >= LISTS_MAX:
            raise BufferFull(f"{LISTS_MAX} lists of entities are being made: try again")
        self.lists += 1
        try:
            yield
        finally:
            self.lists -= 1

    def coordinator_shell(self, type: str) -> CoordinatorShell:
        """Return the shell of a type's coordinator on this node."""
        return self.node.singletons[self.region(type).table.name].coordinator

    def ruling(self, type: str) -> Coordinator | None:
        """Return the coordinator of a type, if it rules here."""
        machine = self.coordinator_shell(type).machine
        rules = machine is not None and machine.state in (
            CoordinatorState.RULING,
            CoordinatorState.RETIRING,
        )
        return machine if rules else None

    async def table(self, type: str) -> dict[str, Any]:
        """Return the coordinator's table, or the part that this node has, which is not
        `complete`."""
        table = await self.ask_coordinator("table", type)
        if table is not None:
            return {**table, "complete": True}
        router = self.region(type).router
        homes = [router.region.home_of(shard) for shard in router.routes]
        rows = [[h.shard, str(h.node), h.fence, "running"] for h in homes if h is not None]
        return {"epoch": router.region.epoch, "shards": rows, "complete": False}


def moment(age: float, now: datetime | None = None) -> str:
    """Return the time of something by its age in seconds."""
    at = (now or datetime.now(UTC)) - timedelta(seconds=age)
    return at.isoformat(timespec="milliseconds")


def moment_of(milliseconds: int) -> str:
    """Return a time that is stored as milliseconds since 1970, whatever number is stored."""
    return datetime_of(milliseconds).isoformat(timespec="milliseconds")


def text_of(value: object) -> str | None:
    """Return the text of a node, or None if there is none."""
    return str(value) if value is not None else None
