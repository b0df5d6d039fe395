"""The region: what a node, a proxy or a client knows of one entity type's shards, and hosts of
them.

The hot path is not here. The shell keeps a route per shard, set by `SetRoute`, and sends along it
without asking. The region sees what has no route yet or no longer, and what arrives for a shard
that is not here; `router` keeps it in order. This module registers, obeys, hosts and drains.

    HostShard ──> STARTING ──ShardReady──> RUNNING ──HandOff──> STOPPING ──ShardDown──> (gone)
                      └──────────────────HandOff───────────────────^

- A shard that stopped under a fence never starts again under that fence or a lower one: a late
  HostShard, or a home told that names this node, is answered with ShardStopped of that very home,
  which frees it if it is what the table says, and otherwise does nothing.
- Who may command is the sender of the highest epoch seen. What comes with a lower epoch, or with
  the same one from somebody else, is refused and noted.
- A *region* (`me`, hosts) registers with what it hosts. A *proxy* registers and hosts nothing. A
  *client* (`me` None) does neither and asks any node's region, which answers and keeps it informed.
- To shut down, it asks the coordinator to move everything away, again and again, and is drained
  when that confirms. Without a coordinator it stops its shards itself.

Source: S0.1, S0.6, S0.8, S0.14, S0.15, S2.23, S2.24, S2.50, S2.51, S2.62; B.56; C.8, C.36.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.messages import Home
from shardbus.sharding.region.buffered import BufferedMessage
from shardbus.sharding.region.draining import Draining, DrainStep
from shardbus.sharding.region.registration import Registration
from shardbus.sharding.region.routing import Routing


class HostedState(Enum):
    """How far a hosted shard is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True)
class HostedShard:
    """A shard on this node."""

    fence: int
    state: HostedState = HostedState.STARTING
    successor: int = 0
    """The fence under which it starts again once it stopped."""
    over: int = 0
    """The fence up to which the coordinator wants it stopped."""


class ShardRegion:
    """One entity type on one node, or in one client. `handle`, `deadline`, `tick` as in
    `events`."""

    def __init__(
        self,
        entity_type: str,
        me: NodeId | None,
        layout: str,
        settings: ShardingSettings,
        *,
        proxy: bool = False,
    ) -> None:
        self.entity_type = entity_type
        self._me = me
        self._layout = layout
        self._proxy = proxy or me is None
        self._out: list[ev.RegionEffect] = []
        self._router = Routing(me, settings, self._out)
        self._registration = Registration(me is not None, settings.retry_interval)
        self._hosted: dict[str, HostedShard] = {}
        self._stopped: dict[str, int] = {}
        self._started_now: dict[str, Home] = {}
        self._stopped_now: dict[str, Home] = {}
        self._watchers: dict[NodeId, None] = {}
        self._draining = Draining(settings.handoff_timeout, settings.retry_interval)
        self._turn_at: float | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch of a coordinator seen."""
        return self._registration.epoch

    @property
    def hosted(self) -> tuple[Home, ...]:
        """What runs here, starts or stops."""
        if self._me is None:
            return ()
        return tuple(Home(shard, self._me, one.fence) for shard, one in self._hosted.items())

    @property
    def registered(self) -> bool:
        """The coordinator of the highest epoch seen has this region in its table."""
        return self._registration.is_registered

    @property
    def buffered(self) -> tuple[int, int]:
        """Messages and bytes that wait for a home."""
        return self._router.buffered

    def state_of(self, shard: str) -> HostedState | None:
        """How far the shard is here, None if it is not."""
        hosted = self._hosted.get(shard)
        return hosted.state if hosted is not None else None

    def home_of(self, shard: str) -> Home | None:
        """The best home known."""
        return self._router.home_of(shard)

    def handle(self, event: ev.RegionEvent, now: float) -> list[ev.RegionEffect]:
        """Take in one event."""
        self._turn_at = now
        match event:
            case ev.Deliver():
                self._router.deliver(event, now)
            case ev.MessageReceived(sender, message):
                self._on_message(sender, message, now)
            case ev.Expired(shards):
                self._router.expired(shards)
            case ev.CoordinatorAt(node):
                self._registration.coordinator_at(node, now)
                self._router.ask_again(now, everything=self._me is None)
                self._look_for_help(now)
            case ev.EpochSeen(epoch):
                self._registration.see(epoch, now)
            case ev.FlushDone(shard, flush_id):
                self._router.flushed(shard, flush_id, now)
            case ev.ShardReady(shard):
                self._on_ready(shard)
            case ev.ShardDown(shard, left):
                self._on_down(shard, left, now)
            case ev.NodeGone(node, returned):
                self._watchers.pop(node, None)
                self._router.gone(node, returned, now)
            case ev.NodeLeft(node):
                self._router.left(node, now)
            case ev.NodeBack(node):
                self._router.back(node)
            case ev.Shutdown():
                self._draining.begin(now)
                self._look_for_help(now)
            case _:
                assert_never(event)
        return self._take()

    def deadline(self) -> float | None:
        """When `tick` is due."""
        ends = self._draining.deadlines()
        dues = (self._turn_at, self._router.deadline(), self._registration.due, *ends)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> list[ev.RegionEffect]:
        """End the turn: say what is to be said, once."""
        self._turn_at = None
        if self._registration.take_due(now) and self._me is not None:
            proxy = self._proxy or self._draining.done
            self._say(msg.Register(self._me, proxy, self._layout, self.hosted))
        self._report(self._router.questions(now))
        self._inform_watchers()
        self._drain(now)
        return self._take()

    def check(self) -> None:
        """Audit; for tests."""
        self._router.check()
        for shard, hosted in self._hosted.items():
            assert hosted.fence > self._stopped.get(shard, 0), f"{shard} came back from the dead"
        assert not (self._draining.done and self._hosted)

    # What the coordinator, or a client, says.

    def _on_message(self, sender: NodeId, message: ev.Message, now: float) -> None:
        match message:
            case msg.RegisterAck(epoch, _, homes):
                if self._obeys(sender, epoch, now):
                    self._registration.registered()
                    self._router.admit()
                    self._on_homes(homes, epoch, now)
            case msg.RegisterRefused(epoch, reason):
                if self._obeys(sender, epoch, now):
                    self._on_refused(reason, now)
            case msg.ShardHomes(epoch, homes):
                if self._obeys(sender, epoch, now):
                    self._on_homes(homes, epoch, now)
            case msg.HostShard(epoch, homes, behind):
                if self._obeys(sender, epoch, now):
                    before = {home.shard: home for home in behind}
                    for home in homes:
                        self._on_host(home, before.get(home.shard), epoch, now)
            case msg.PassOn(homes):
                for home in homes:
                    if home.node == sender:
                        self._router.pass_on(home)
            case msg.BeginHandOff(epoch, homes):
                if self._obeys(sender, epoch, now):
                    for home in homes:
                        self._router.begin_handoff(home, epoch, now)
            case msg.HandOff(epoch, homes):
                if self._obeys(sender, epoch, now):
                    for home in homes:
                        self._on_handoff(home, now)
            case msg.Wait(epoch, shards, _):  # the promise of one that was replaced is void
                if self._obeys(sender, epoch, now) and sender == self._registration.coordinator:
                    self._router.wait(shards, now)
            case msg.RegionStopped(node):
                if node == self._me and sender == self._registration.coordinator:
                    self._draining.confirm()
            case msg.GetShardHome(shards):
                self._on_question(sender, shards, now)
            case (
                msg.Register() | msg.ShardStarted() | msg.BeginHandOffAck() | msg.ShardStopped()
                | msg.ShardLoads() | msg.GracefulShutdownRequest()
            ):  # fmt: skip
                self._note("unexpected", f"{type(message).__name__} from {sender}")
            case _:
                assert_never(message)

    def _obeys(self, sender: NodeId, epoch: int, now: float) -> bool:
        why_not = self._registration.obeys(sender, epoch)
        if why_not:
            self._note("refused", why_not)
        else:
            self._registration.see(epoch, now)
        return not why_not

    def _on_homes(self, homes: tuple[Home, ...], epoch: int, now: float) -> None:
        for home in homes:
            hosted = self._hosted.get(home.shard)
            if home.node == self._me and hosted is None:
                if home.fence <= self._stopped.get(home.shard, 0):
                    self._stopped_now[home.shard] = home
                    continue
            elif hosted is not None and home.node != self._me and home.fence > hosted.fence:
                self._note("superseded", f"shard {home.shard} lives at {home.node}")
                hosted.successor = 0
                self._stop(home.shard, hosted, now)
            self._router.told(home, epoch, now)

    def _on_host(self, home: Home, behind: Home | None, epoch: int, now: float) -> None:
        shard, hosted = home.shard, self._hosted.get(home.shard)
        if home.node != self._me or self._proxy:
            self._note("unexpected", f"HostShard {shard} for {home.node}")
            return
        if hosted is None:
            over = home.fence <= self._stopped.get(shard, 0)
            if over or self._draining.alone or not self._router.believes(home, epoch):
                self._say_stopped(home)
                return
            if behind is not None and self._router.follow(behind, now):
                self._out.append(ev.Send(behind.node, msg.PassOn((home,))))
            self._start(home, epoch, now)
        elif home.fence == hosted.fence and hosted.state is HostedState.RUNNING:
            self._started_now[shard] = home
        elif home.fence > hosted.fence:
            hosted.successor = max(hosted.successor, home.fence)
            self._stop(shard, hosted, now)
            self._router.told(home, epoch, now)

    def _on_handoff(self, home: Home, now: float) -> None:
        hosted = self._hosted.get(home.shard)
        if hosted is None or home.node != self._me:
            self._say_stopped(home)
            return
        if home.fence < hosted.fence:
            self._note("stale_handoff", home.shard)
            return
        if home.fence >= hosted.successor:
            hosted.successor = 0
            hosted.over = home.fence
        self._stop(home.shard, hosted, now)
        self._router.stops(home.shard, home.fence, now)

    def _on_refused(self, reason: str, now: float) -> None:
        self._note("register_refused", reason)
        self._registration.refused(now)
        for shard, hosted in self._hosted.items():
            self._stop(shard, hosted, now)
        self._router.refuse()

    def _on_question(self, sender: NodeId, shards: tuple[str, ...], now: float) -> None:
        """A client asks: answer what is known, and keep it informed from now on."""
        if sender != self._me:
            self._watchers[sender] = None
        known = {shard: home for shard in shards if (home := self.home_of(shard)) is not None}
        if known:
            homes = tuple(known.values())
            self._out.append(ev.Send(sender, msg.ShardHomes(self.epoch, homes)))
        unknown = tuple(shard for shard in shards if shard not in known)
        if unknown:
            why = "the coordinator is asked"
            self._out.append(ev.Send(sender, msg.Wait(self.epoch, unknown, why)))
        for shard in unknown:
            self._router.watch(shard, now)

    # Shards on this node.

    def _start(self, home: Home, epoch: int, now: float) -> None:
        self._hosted[home.shard] = HostedShard(home.fence)
        self._router.told(home, epoch, now)
        self._out.append(ev.StartShard(home.shard, home.fence))

    def _stop(self, shard: str, hosted: HostedShard, now: float) -> None:
        if hosted.state is HostedState.STOPPING:
            return
        hosted.state = HostedState.STOPPING
        self._router.stops(shard, hosted.fence, now)
        self._out.append(ev.StopShard(shard, hosted.fence))

    def _on_ready(self, shard: str) -> None:
        hosted = self._hosted.get(shard)
        if hosted is None or hosted.state is not HostedState.STARTING or self._me is None:
            return
        hosted.state = HostedState.RUNNING
        self._started_now[shard] = Home(shard, self._me, hosted.fence)
        self._router.runs(shard, hosted.fence)

    def _on_down(self, shard: str, left: tuple[BufferedMessage, ...], now: float) -> None:
        hosted = self._hosted.pop(shard, None)
        if hosted is None or self._me is None:
            return
        over = self._stopped[shard] = max(hosted.fence, hosted.over)
        if hosted.state is not HostedState.STOPPING or not hosted.successor:
            self._router.stops(shard, over, now)  # it may have been told of this home once more
        self._router.keep(shard, left, self.epoch, now)
        if hosted.successor:
            self._hosted[shard] = HostedShard(hosted.successor)
            self._out.append(ev.StartShard(shard, hosted.successor))
        else:
            self._stopped_now[shard] = Home(shard, self._me, self._stopped[shard])

    def _say_stopped(self, home: Home) -> None:
        self._stopped[home.shard] = max(self._stopped.get(home.shard, 0), home.fence)
        self._stopped_now[home.shard] = home

    # What is said at the end of a turn.

    def _report(self, questions: tuple[str, ...]) -> None:
        if self._registration.coordinator is None:
            return
        if questions:
            self._say(msg.GetShardHome(questions))
        started, self._started_now = self._started_now, {}
        acks = self._router.take_acks()
        stopped, self._stopped_now = self._stopped_now, {}
        if self._me is None:
            return
        if started:
            self._say(msg.ShardStarted(tuple(started.values())))
        if acks:
            self._say(msg.BeginHandOffAck(self._me, tuple(acks.values())))
        if stopped:
            left = tuple(shard for shard in stopped if self._router.has_mail(shard))
            self._say(msg.ShardStopped(self._me, tuple(stopped.values()), left))

    def _inform_watchers(self) -> None:
        news, self._router.news = self._router.news, {}
        if news:
            for watcher in self._watchers:
                self._out.append(ev.Send(watcher, msg.ShardHomes(self.epoch, tuple(news.values()))))

    # The end.

    def _look_for_help(self, now: float) -> None:
        here = self._registration.coordinator is not None
        self._draining.look_for_help(here=here, ever=bool(self.epoch), now=now)

    def _drain(self, now: float) -> None:
        step = self._draining.step(now, hosts=bool(self._hosted), proxy=self._proxy)
        if step is DrainStep.STOP:
            for shard, hosted in self._hosted.items():
                self._stop(shard, hosted, now)
            step = self._draining.step(now, hosts=bool(self._hosted), proxy=self._proxy)
        if step is DrainStep.DONE:
            self._out.append(ev.Drained())
        elif step is DrainStep.ASK and self._registration.is_registered and self._me is not None:
            self._say(msg.GracefulShutdownRequest(self._me))

    def _say(self, message: ev.Message) -> None:
        self._out.append(ev.SendCoordinator(message))

    def _note(self, kind: str, detail: str) -> None:
        self._out.append(ev.Note(kind, detail))

    def _take(self) -> list[ev.RegionEffect]:
        effects = list(self._out)
        self._out.clear()
        return effects
