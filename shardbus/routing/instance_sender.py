"""Sends to the entities of a type with instances, by one router: `nearest`, `all`, ...

To callers it looks like the `Router` of a type without instances: `tell`, `ask`, `send`. It picks
an instance for each message (`instance_policies`) and passes the message on under the wire id of
that instance. `nearest` and `hash` pick once per entity, and again when a home or N has changed.

Asks of `all` and `first` are several asks, whose outcomes `instance_answers` collects.

**all** answers with a dict of node to reply or error. It names an instance whose node died
with NodeLost, and never waits for an instance that is being started: one without a home has the key
`~2`, its number, and NodeLost. Only where a shard is used for the first time in this process, or
moves at this moment, does it wait for homes, up to `HOMES_WITHIN_S`. A tell of `all` is buffered
for an instance without a home, as any tell.

Source: docs/partitions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any

from shardbus.errors import AskTimeout, ConfigError, LocalProtocolError, NodeLost, RequestError
from shardbus.routing import instance_policies
from shardbus.routing.instance_answers import AllAnswers, FirstAnswer
from shardbus.routing.instance_policies import (
    ALL,
    FIRST,
    HASH,
    LEAST_BUSY,
    NEAREST,
    Choice,
    any_of,
    least_busy,
    nearest,
    nearest_other,
    next_in_turn,
    spread,
)
from shardbus.routing.instance_routes import ShardRows, wire_id
from shardbus.routing.pending_message import Binding, PendingMessage
from shardbus.routing.router import Deliverer, LoopSender, Router
from shardbus.routing.shard_route import NO_ROUTE, ROUTES_MAX, ShardRoute, check_room
from shardbus.routing.traced_sending import plain_sender
from shardbus.sharding.instances import split_row
from shardbus.sharding.region.route import Absence
from shardbus.transport.asks import Key, set_error
from shardbus.wire.schema import Decode, Interface, form_of

HOMES_WITHIN_S = 1.0
"""How long `all` waits for homes that this process has not requested before."""

SENDERS_MAX = 100
"""Senders of one type that are kept, by their choice."""

STICKY = (NEAREST, HASH, FIRST)
"""Routers that pick the same instance until a home or N changes. A tell of `first` goes to the
nearest."""


class InstanceSender:
    """Sends to one type by one `choice` of router."""

    def __init__(self, router: Router, choice: Choice) -> None:
        assert router.rows is not None
        self.router, self.rows, self.choice = router, router.rows, choice
        self._post = plain_sender(router)
        """Sends to wire ids."""
        self.done = router.done
        self._to_all = choice.policy == ALL
        self._sticky = choice.policy in STICKY
        self._asks_several = choice.policy in (ALL, FIRST)
        self._binding = Binding.PICKED if choice.policy == HASH else Binding.ANY
        self._version = -1
        self._picked: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._dice = Random(spread_seed(self.rows.sender_name))
        self.key: Callable[[str], Key] = router.key

    @property
    def interface(self) -> Interface:
        """The interface of the type, as its router knows it now."""
        return self.router.interface

    @property
    def address(self) -> tuple[Any, ...]:
        """Equal for two senders that send alike."""
        return self.router, self.choice

    @property
    def deliverer(self) -> Deliverer:
        """Raise ConfigError: a delivery is for one entity, and has one record."""
        raise ConfigError(
            f"{self.interface.name!r} has instances, which take no deliveries",
            hint="use tell, or deliver to a type without instances",
        )

    def by(self, choice: Choice) -> InstanceSender:
        """Return the sender to the same type by another router."""
        senders = self.rows.senders
        sender: InstanceSender | None = senders.get(choice)
        if sender is None:
            sender = InstanceSender(self.router, choice)
            if len(senders) < SENDERS_MAX:
                senders[choice] = sender
        return sender

    def route_for(self, entity_id: str) -> ShardRoute:
        """Return the route that a reference may use without this sender: by a router that picks for
        each message, or in a process with tracing, it is none."""
        if self._to_all or not self._sticky or self.router.tracer is not None:
            self.rows.of(entity_id)  # this requests homes; an invalid id is the caller's error
            return NO_ROUTE
        return Picked(self, entity_id)

    # ---- one instance

    def pick(self, entity_id: str) -> str:
        """Return the wire id of the instance for the next message to an entity.

        Raises:
            ConfigError: the id is not valid, or has the mark of an instance.
        """
        if not self._sticky:
            return wire_id(entity_id, self._instance(entity_id))
        if self._version != self.rows.version or len(self._picked) >= ROUTES_MAX:
            self._picked.clear()
            self._version = self.rows.version
        picked = self._picked.get(entity_id)
        if picked is None:
            picked = wire_id(entity_id, self._instance(entity_id))
            self._picked[entity_id] = picked
        return picked

    def _instance(self, entity_id: str) -> int:
        routes = self.rows
        rows, count = routes.of(entity_id), routes.count
        match self.choice.policy:
            case instance_policies.ROUND_ROBIN:
                if len(self._turns) >= ROUTES_MAX:
                    self._turns.clear()
                turn = self._turns.get(entity_id, -1)
                if turn < 0:  # not all senders begin with the same instance
                    turn = spread(f"{routes.sender_name} {entity_id}", count)
                self._turns[entity_id] = turn + 1
                return next_in_turn(rows.ready, turn, count)
            case instance_policies.RANDOM:
                return any_of(rows.ready, self._dice, count)
            case instance_policies.LEAST_BUSY:
                cost = partial(routes.cost_of, entity_id, rows)
                return least_busy(rows.ready, self._dice, count, cost)
            case instance_policies.HASH:
                return spread(self.choice.key or routes.sender_name, count)
            case _:
                return self._nearest(entity_id, rows)

    def _nearest(self, entity_id: str, rows: ShardRows) -> int:
        text = f"{self.rows.sender_name} {entity_id}"
        return nearest(rows.ready, rows.distances, text, self.rows.count)

    # ---- telling

    def tell(self, key: Key, entity_id: str, payload: bytes) -> Any:
        """Send without an answer. Returns an awaitable that is done when there is room for more.
        Raises as `Router.tell`."""
        if self._to_all:
            return self._tell_each(key, entity_id, payload)
        return self._post.tell(key, self.pick(entity_id), payload, self._binding)

    def send(self, entity_id: str, message: object) -> Any:
        """Tell a message to `receive`. Raises as `Router.send`."""
        if self._to_all:
            form = form_of(message)
            return self._tell_each(self.key(form.method), entity_id, form.encode(message))
        return self._post.send(self.pick(entity_id), message, self._binding)

    def tell_nowait(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Send at once, or raise BufferFull if `tell` would wait at some instance."""
        if not self._to_all:
            self._post.tell_nowait(key, self.pick(entity_id), payload, self._binding)
            return
        for k, route in enumerate(self.rows.of(entity_id).routes, 1):
            check_room(route.out, key[0], wire_id(entity_id, k))
        self._tell_each(key, entity_id, payload)

    def _tell_each(self, key: Key, entity_id: str, payload: bytes) -> Any:
        """Tell every instance, once their number is known."""
        router, rows = self.router, self.rows.of(entity_id)
        if self.rows.counted:
            return self._tell_all(key, entity_id, payload)
        message = PendingMessage(key, rows.shard, entity_id, payload)
        router.hold_uncounted(message, partial(self._tell_all_late, key, entity_id, payload))
        return router.done

    def _tell_all(self, key: Key, entity_id: str, payload: bytes) -> Any:
        """Tell every instance. Returns an awaitable that waits for room at each of them. An error
        of a later one is not definite: the message was sent to the first."""
        router = self.router
        waits: list[Any] = []
        for k in range(1, len(self.rows.of(entity_id).routes) + 1):
            try:
                room = self._post.tell(key, wire_id(entity_id, k), payload, Binding.PART)
            except RequestError as error:
                error.definite = error.definite and k == 1
                raise
            if room is not router.done:
                waits.append(room)
        return RoomAtEach(waits) if waits else router.done

    def _tell_all_late(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Tell every instance after the sender's call. A part without room counts as dropped; the
        others are sent."""
        for k in range(1, len(self.rows.of(entity_id).routes) + 1):
            self._post.tell_accepted(key, wire_id(entity_id, k), payload, Binding.PART)

    # ---- asking

    def ask(
        self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode
    ) -> asyncio.Future[Any]:
        """Send an ask. Returns a future of the answer; of `all`, a future of a dict."""
        if self._asks_several:
            answer: asyncio.Future[Any] = self.done.get_loop().create_future()
            self._ask_several(answer, key, entity_id, payload, timeout_ms, decode)
            return answer
        wire = self.pick(entity_id)
        future = self._post.ask(key, wire, payload, timeout_ms, decode, self._binding)
        if self.choice.policy == LEAST_BUSY:
            self._note_open(wire, future)
        return future

    def ask_for(
        self,
        answer: Any,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
    ) -> None:
        """Send an ask whose outcome goes to `answer`, which need not be a future of this loop."""
        least_busy, here = self.choice.policy == LEAST_BUSY, isinstance(answer, asyncio.Future)
        if not here and (least_busy or self._asks_several):
            future = self.ask(key, entity_id, payload, timeout_ms, decode)
            future.add_done_callback(partial(_pass_on, answer))
        elif self._asks_several:
            self._ask_several(answer, key, entity_id, payload, timeout_ms, decode)
        else:
            wire = self.pick(entity_id)
            self._post.ask_for(answer, key, wire, payload, timeout_ms, decode, self._binding)
            if least_busy:
                self._note_open(wire, answer)

    def _note_open(self, wire: str, future: asyncio.Future[Any]) -> None:
        home = self.router.region.home_of(self.router.route_of(wire).shard)
        self.rows.note_open(wire, home.node if home is not None else None, future)

    def _ask_several(
        self,
        answer: asyncio.Future[Any],
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
    ) -> None:
        loop = self.done.get_loop()
        ends = loop.time() + timeout_ms / 1000

        def left_ms() -> int:
            return max(1, round((ends - loop.time()) * 1000))

        # This requests homes; an invalid id is the caller's error.
        rows = self.rows.of(entity_id)
        if self.choice.policy == FIRST:

            def ask(wire: str) -> asyncio.Future[Any]:
                return self._post.ask(key, wire, payload, left_ms(), decode)

            self._ask_first(answer, entity_id, ask, ends)
            return
        if self.rows.counted:
            self._ask_all(answer, key, entity_id, payload, timeout_ms, decode)
            return

        def ask_all() -> None:
            timer.cancel()  # from now on each instance has the rest of the time
            self._ask_all(answer, key, entity_id, payload, left_ms(), decode)

        message = PendingMessage(key, rows.shard, entity_id, payload, 0, answer, decode)
        try:
            self.router.hold_uncounted(message, ask_all)
        except (RequestError, LocalProtocolError) as error:
            set_error(answer, error)
            return
        text = f"the number of instances of {self.interface.name!r} is not known in time"
        timer = loop.call_later(timeout_ms / 1000, _fail, answer, AskTimeout(text))
        answer.add_done_callback(lambda _: timer.cancel())

    def _ask_first(
        self,
        answer: asyncio.Future[Any],
        entity_id: str,
        ask_wire: Callable[[str], asyncio.Future[Any]],
        ends: float,
    ) -> None:
        """Ask the nearest instance, and another one if that is late or fails. While none has a home
        the first ask waits, and the router may pass it to another instance than it was for."""
        waiting: PendingMessage | None = None
        first = self._nearest(entity_id, self.rows.of(entity_id))

        def ask(instance: int) -> asyncio.Future[Any]:
            nonlocal waiting
            future = ask_wire(wire_id(entity_id, instance))
            if instance == first:
                waiting = self.router.buffered_asks.last_of(future)
            return future

        def other() -> int | None:
            instance = first if waiting is None else split_row(waiting.entity_id)[1]
            rows = self.rows.of(entity_id)
            return nearest_other(rows.ready, rows.distances, instance)

        FirstAnswer(self.rows, answer, ask, first, other, self.choice.after, ends)

    def _ask_all(
        self,
        answer: asyncio.Future[Any],
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
    ) -> None:
        """Ask every instance, except one that has no home and gets none at once."""
        if answer.done():
            return
        router, loop = self.router, self.done.get_loop()
        rows = self.rows.of(entity_id)
        answers = AllAnswers(loop, answer)
        for k, route in enumerate(list(rows.routes), 1):
            patience = None
            if route.out is None:
                absence, node = router.region.absence_of(route.shard)
                patience = HOMES_WITHIN_S
                if absence is Absence.NEVER:
                    patience += rows.watched_at - loop.time()
                if absence is Absence.DEAD or patience <= 0:
                    where = f"{node} died" if node is not None else f"instance {k} has no home yet"
                    answers.add(str(node) if node is not None else f"~{k}", NodeLost(where))
                    continue
            wire = wire_id(entity_id, k)
            future = self._post.ask(key, wire, payload, timeout_ms, decode, Binding.PART)
            if patience is None:
                answers.expect(self._name(route, k), future)
            else:
                answers.expect(partial(self._name, route, k), future)
                timer = loop.call_later(patience, self._give_up, route, k, future)
                future.add_done_callback(partial(_cancel, timer))
        answers.begin()

    def _name(self, route: ShardRoute, instance: int) -> str:
        """Return the key of an instance in the answer of `all`: its node, if that is known."""
        home = self.router.region.home_of(route.shard)
        if home is not None:
            return str(home.node)
        _, node = self.router.region.absence_of(route.shard)
        return str(node) if node is not None else f"~{instance}"

    @staticmethod
    def _give_up(route: ShardRoute, instance: int, future: asyncio.Future[Any]) -> None:
        """End the wait for an instance that has no home in time."""
        if route.out is None and not future.done():
            set_error(future, NodeLost(f"instance {instance} has no home yet"))


class Picked(ShardRoute):
    """The instance that a reference by `nearest`, `first` or `hash` sends to: its wire id and its
    route, as of a version of the rows."""

    __slots__ = ("_entity_id", "_sender", "route", "rows", "version", "wire")

    def __init__(self, sender: InstanceSender, entity_id: str) -> None:
        super().__init__("")
        self._sender, self._entity_id, self.rows = sender, entity_id, sender.rows
        self.wire = ""
        self.version = -1
        self.route: ShardRoute
        self.renew()

    def renew(self) -> None:
        """Pick again."""
        self.wire = self._sender.pick(self._entity_id)
        self.route = self._sender.router.route_of(self.wire)
        self.version = self.rows.version


def sender_of(router: Router) -> LoopSender:
    """Return the sender to a type: with instances, by the router that it declares."""
    if router.rows is None:
        return plain_sender(router)
    return InstanceSender(router, Choice(router.interface.router))


def spread_seed(name: str) -> int:
    """Return a seed for a sender's dice: two senders have different seeds."""
    return spread(name, 2**31 - 1)


class RoomAtEach:
    """The result of a tell of `all` without room: awaitable until there is room at each instance.
    It costs nothing if the sender does not await it."""

    __slots__ = ("_waits",)

    def __init__(self, waits: list[Any]) -> None:
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, None]:
        for room in self._waits:
            yield from room.__await__()


def _cancel(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        set_error(answer, error)


def _pass_on(answer: Any, future: asyncio.Future[Any]) -> None:
    """Give the outcome of a future to an answer of another thread."""
    if answer.done():
        return
    error = future.exception() if not future.cancelled() else AskTimeout("the ask was cancelled")
    if error is not None:
        set_error(answer, error)
    else:
        answer.set_result(future.result())
