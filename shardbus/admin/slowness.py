"""Why an entity is slow: the causes, the likeliest first, from figures that the nodes have anyway.

A message for an entity waits on its way in one of these places. Each rule looks at one of them, and
puts into numbers how long a message waits there now:

    sender's node          no home, the shard moves, the home is suspended, unreachable or silent
    home: its loop         one shard, another handler, or the sum of all keeps it busy
    home: the mailbox      a handler does not end; the messages ahead take their time
    home: the handler      its own code, the store, the answer of another entity, its start

**Order.** A cause that stops every message comes first. The other causes are ordered by the seconds
that they cost a message which arrives now: the messages ahead of it, and the message itself, times
the time of one. The time of one message is divided between the store, the entities that are asked,
and the handler's own code, by `looks`: the home looks at the entity some times in a row and notes
its waits (`admin.entity_watch`).

**Thresholds.** Below `SLOW_S` nothing is slow. A mailbox is stuck if the same handler was there at
every look and has run for `STUCK_S`. A node is strained if its loop is busy or late; then a shard
with half of its messages is hot. But few long messages are no hot shard: their handler is slow.

Nothing here asks, measures or waits. Figures of an older node lack fields, which then are empty.

Source: docs/how-to/slow.md; B.137, N.20, N.21.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shardbus.quantities import counted

SLOW_S = 0.1
"""Seconds from which a wait is a cause."""
STUCK_S = 2.0
"""Seconds after which a handler that has not ended holds its mailbox up."""
LONG_S = 0.05
"""Mean seconds of a message from which its handler keeps a loop busy, not how many come."""
BUSY_PART = 0.7
"""Of its time, from which a node's loop is strained."""
HOT_PART = 0.5
"""Of a node's messages, from which a shard is hot."""
ALONE_PART = 0.8
"""Of a shard's messages, from which one entity makes it hot."""
STORE_FAILED_S = 60.0
"""Seconds for which a failure of the store is a cause."""
START_FAILED_S = 600.0
"""Seconds for which the failed start of an entity that is not in memory is a cause."""
ALIVE_PHI = 1.0
"""The suspicion below which a node answers heartbeats in time."""

PAUSING = "pausing"
"""The state of an activation that waits for its next attempt to start."""
STORE, THREAD = "store", "thread"
"""The waits of a handler, besides entities: for a load or a save, or for a worker thread."""


class EntityPlace(msgspec.Struct, frozen=True):
    """The figures of the asked node about an entity's home.

    Attributes:
        home: the node, or empty if no home is known here.
        shard_state: of its shard, as its coordinator has it.
        moving: messages wait here, for the shard is on the move.
        suspended: why the home handles nothing; None if it does not answer.
        unreachable_for: seconds; None if it is reachable.
        phi: the suspicion of the home; None if this node does not watch it.
        waiting: messages of the type that wait on this node for a home.
        missing: why no coordinator is known; empty if one is.
        decision: how the cluster decides after a split, for people.
    """

    home: str
    shard: str = ""
    shard_state: str = ""
    moving: bool = False
    suspended: str | None = ""
    unreachable_for: float | None = None
    phi: float | None = None
    waiting: int = 0
    missing: str = ""
    decision: str = ""


class CallTimes(msgspec.Struct, frozen=True):
    """Calls of one kind, lately, in seconds. `about` names them."""

    about: str = ""
    count: int = 0
    mean: float = 0.0
    p99: float = 0.0


class StoreFigures(msgspec.Struct, frozen=True):
    """The figures of an entity's home about the store.

    Attributes:
        saves, loads: calls of the entity's type; `all`: of all types.
        save_under_way: seconds for which the oldest save of the node has had no answer.
        failed_ago, error: its last failure.
    """

    saves: CallTimes = CallTimes()
    loads: CallTimes = CallTimes()
    all: CallTimes = CallTimes()
    save_under_way: float = 0.0
    failed_ago: float | None = None
    error: str = ""


class EntityFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an entity's home about it, and about itself.

    Attributes:
        life: the state of its activation; empty if it is not in memory.
        mailbox, mailbox_max: messages that wait, and that may.
        failures: failed starts in a row.
        start_failed_ago, start_error: its last start that failed, if none has succeeded since.
        looks, busy: how often the home looked at it, and found it at work.
        moved: it was at work on another message at some look than at another.
        waits: the number of looks at which it waited, by target: `store`, `thread`, or an entity.
        method, running_for, stack: the handler at work, its seconds so far, and where it waits.
        handlers: the handlers of the entity, by samples; its type's if it has none.
        sampled: samples that `handlers` has of this entity.
        waited_p99: of the samples of its type, from arrival to the begin of the handler.
        shard_part: of the node's messages that are for its shard.
        entity_part: of its shard's messages that are for this entity.
        rate, node_busy, lag: messages a second of the node, the part of its time that its loop is
            busy, and the seconds by which it is late.
        store: about the store (`StoreFigures`).
        blocked: reports of the last minute about handlers that blocked the loop.
    """

    life: str = ""
    mailbox: int = 0
    mailbox_max: int = 0
    failures: int = 0
    start_failed_ago: float | None = None
    start_error: str = ""
    looks: int = 0
    busy: int = 0
    moved: bool = False
    waits: dict[str, int] = msgspec.field(default_factory=dict)
    method: str = ""
    running_for: float = 0.0
    stack: list[str] = msgspec.field(default_factory=list)
    handlers: list[CallTimes] = msgspec.field(default_factory=list)
    sampled: int = 0
    waited_p99: float = 0.0
    shard_part: float = 0.0
    entity_part: float = 0.0
    rate: float = 0.0
    node_busy: float = 0.0
    lag: float = 0.0
    store: StoreFigures = StoreFigures()
    blocked: list[str] = msgspec.field(default_factory=list)

    def part_of(self, what: str) -> float:
        """Return the part of its work that the entity waits for this."""
        return self.waits.get(what, 0) / self.busy if self.busy else 0.0

    @property
    def ahead(self) -> int:
        """Messages before the answer to one that arrives now: those that wait, and itself."""
        return self.mailbox + 1


class Cause(msgspec.Struct, frozen=True):
    """A cause, with its figures and the remedy. `seconds`: its approximate cost for a message that
    arrives now; None if it stops all of them."""

    cause: str
    seconds: float | None
    text: str
    remedy: str


def causes(place: EntityPlace, figures: EntityFigures | None) -> list[Cause]:
    """Return why messages of an entity take long, the likeliest cause first; empty if no figure
    shows slowness. `figures`: None if its home has given none."""
    reasons = [*_at_sender(place)]
    if figures is not None:
        reasons += _at_home(place, figures)
    reasons.sort(key=lambda cause: (cause.seconds is not None, -(cause.seconds or 0.0)))
    return reasons


def span(seconds: float) -> str:
    """Return seconds as people read them."""
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} us"
    return f"{1000 * seconds:.0f} ms" if seconds < 1.0 else f"{seconds:.1f} s"


def _part(part: float) -> str:
    return f"{100 * part:.0f} %"


# ---- on the way


def _at_sender(place: EntityPlace) -> Iterator[Cause]:
    """Yield the causes that keep messages from reaching the entity."""
    if not place.home:
        yield from _without_home(place)
    elif place.suspended:
        yield Cause(
            "suspended",
            None,
            f"{place.home} is {place.suspended}: its entities handle nothing",
            "mend the network between the nodes; messages go on when it hears from the others "
            f"again, or when {place.decision}",
        )
    elif place.unreachable_for is not None:
        heard = "" if place.phi is None else f", phi {place.phi:.1f}"
        yield Cause(
            "unreachable",
            None,
            f"{place.home} is unreachable since {span(place.unreachable_for)}{heard}: no "
            "heartbeats arrive, its entities are suspended there and start nowhere else until it "
            "is removed",
            f"mend its network, or wait: {place.decision}; `shardbus down` it only if its process "
            "is surely gone",
        )
    elif place.suspended is None:
        yield _silent(place)
    elif place.moving:
        yield Cause(
            "moving",
            None,
            f"its shard {place.shard} is on the move ({place.shard_state or 'state unknown'}): "
            + _waiting_here(place),
            "wait: `handoff_timeout` bounds a move; the history below shows how long moves took",
        )


def _without_home(place: EntityPlace) -> Iterator[Cause]:
    if place.missing:
        yield Cause(
            "no_coordinator",
            None,
            f"its shard has no home, and no coordinator gives it one: {place.missing}",
            "run `shardbus doctor` and `shardbus cluster status`",
        )
    elif place.waiting:
        yield Cause(
            "no_home",
            None,
            f"its shard {place.shard} has no home yet: {_waiting_here(place)}",
            "see whether rebalancing or `min_members` holds its coordinator: `shardbus doctor`",
        )


def _silent(place: EntityPlace) -> Cause:
    """Return why a home that is not unreachable gives no answer. Its heartbeats have a thread of
    their own: they go on when its loop stands still."""
    if place.phi is not None and place.phi < ALIVE_PHI:
        return Cause(
            "blocked_loop",
            None,
            f"{place.home} answers heartbeats (phi {place.phi:.1f}) and no question: its "
            "loop stands still, most likely in a handler",
            "its log names the handler (`blocks the loop`): mark that @handler(thread=True), or "
            "let it await",
        )
    return Cause(
        "silent",
        None,
        f"{place.home} does not answer; messages wait until it does or is removed",
        "see whether its process runs and its machine has processor time: `shardbus nodes`",
    )


# ---- at home


def _at_home(place: EntityPlace, seen: EntityFigures) -> Iterator[Cause]:
    if place.suspended:
        return  # while a node is suspended, its work is no cause
    yield from _start(seen)
    stuck = list(_stuck(seen)) if seen.life != PAUSING else []
    yield from stuck
    yield from _store(seen)
    if not stuck:
        yield from _awaited(seen)
        yield from _handler(seen)
    yield from _loop(place, seen)


def _start(seen: EntityFigures) -> Iterator[Cause]:
    because, ago = seen.start_error, seen.start_failed_ago
    if seen.failures > 1:
        last = f", the last time {span(ago or 0.0)} ago: {because}" if because else ""
        yield Cause(
            "failing_start",
            None,
            f"its start has failed {counted(seen.failures, 'time')} in a row{last}; "
            f"{counted(seen.mailbox, 'message waits', 'messages wait')} for one that succeeds",
            "mend what the error names; attempts go on, with a backoff of at most "
            "`entity_restart_backoff`, and an ask that cannot wait for the next one gets the error",
        )
    elif because and not seen.life and ago is not None and ago < START_FAILED_S:
        yield Cause(
            "failing_start",
            None,
            f"its last start failed {span(ago)} ago: {because}",
            "mend what the error names; the next message starts it again",
        )


def _stuck(seen: EntityFigures) -> Iterator[Cause]:
    """A handler that has not ended for long, and does not wait for the store."""
    stands = seen.looks > 0 and seen.busy == seen.looks and not seen.moved
    if not stands or seen.running_for < STUCK_S or seen.part_of(STORE) >= HOT_PART:
        return
    others = [what for what in seen.waits if what not in (STORE, THREAD)]
    at = f", at {' < '.join(seen.stack)}" if seen.stack else ""
    for_whom = f"; no answer yet from {', '.join(others)}" if others else ""
    if THREAD in seen.waits:
        at = ", in a worker thread"
    remedy = "give what it waits for a timeout; restart its node if that cannot end"
    if others:
        remedy = f"explain {others[0]}, for which it waits"
    yield Cause(
        "stuck_mailbox",
        seen.running_for,
        f"its mailbox has not moved for {span(seen.running_for)}: `{seen.method}` has run since"
        f"{at}{for_whom}; {_waiting(seen)}",
        remedy,
    )


def _waiting_here(place: EntityPlace) -> str:
    waiting = counted(place.waiting, "message of its type waits", "messages of its type wait")
    return f"{waiting} on this node"


def _waiting(seen: EntityFigures) -> str:
    full = seen.mailbox_max and seen.mailbox >= seen.mailbox_max
    waiting = counted(seen.mailbox, "message waits", "messages wait")
    return waiting + (", its mailbox is full" if full else "")


def _store(seen: EntityFigures) -> Iterator[Cause]:
    store = seen.store
    calls = max(store.saves, store.loads, key=lambda times: times.mean)
    waits = seen.part_of(STORE)
    late = seen.running_for if waits >= HOT_PART and not seen.moved else 0.0
    late = max(late, store.save_under_way if calls.count or waits else 0.0)
    failed = store.failed_ago is not None and store.failed_ago < STORE_FAILED_S
    if calls.p99 < SLOW_S and late < SLOW_S and not failed:
        return
    each = calls.mean * (seen.ahead if waits else 1)
    text = f"a {calls.about} takes {span(calls.p99)} (p99): the store is slow"
    if store.all.count:
        text += f" (node-wide p99 {span(store.all.p99)})"
    if late > calls.p99:
        text = f"the store has not answered for {span(late)}"
        if calls.count:
            text += f"; a {calls.about} took {span(calls.p99)} (p99) in the last minute"
    if waits:
        looks = counted(seen.busy, "look")
        text += f"; its handler waited for it at {seen.waits[STORE]} of {looks}"
    if failed and store.failed_ago is not None:
        text += f"; it gave no answer {span(store.failed_ago)} ago: {store.error}"
    yield Cause(
        "slow_store",
        max(each, late, SLOW_S if failed else 0.0),
        f"{text}; {_waiting(seen)}",
        "look at the store's server and the network to it; save less often in one handler",
    )


def _awaited(seen: EntityFigures) -> Iterator[Cause]:
    """Another entity whose answer the handler waits for."""
    slowest = _slowest(seen)
    for what, times in seen.waits.items():
        seconds = slowest.mean * seen.ahead * times / max(1, seen.busy)
        if what not in (STORE, THREAD) and seconds >= SLOW_S:
            yield Cause(
                "slow_answer",
                seconds,
                f"its handler `{seen.method or slowest.about}` waits for the answer of {what}, at "
                f"{times} of {counted(seen.busy, 'look')}; {_waiting(seen)}",
                f"explain {what}",
            )


def _slowest(seen: EntityFigures) -> CallTimes:
    """Return the handler to which most time goes."""
    return max(seen.handlers, key=lambda handler: handler.mean * handler.count, default=CallTimes())


def _handler(seen: EntityFigures) -> Iterator[Cause]:
    slowest = _slowest(seen)
    elsewhere = sum(times for what, times in seen.waits.items() if what != THREAD)
    share = 1.0 - min(1.0, elsewhere / seen.busy) if seen.busy else 1.0
    if not seen.busy and slowest.mean:  # it rests now: the store's own figures have its time
        share = max(0.0, 1.0 - (seen.store.saves.mean + seen.store.loads.mean) / slowest.mean)
    ahead = seen.ahead if seen.sampled or seen.busy else 1
    seconds = slowest.mean * ahead * share
    if share < HOT_PART or (seconds < SLOW_S and slowest.p99 * share < SLOW_S):
        return
    whose = "its handler" if seen.sampled else "in other entities of its type the handler"
    text = f"{whose} `{slowest.about}` takes {span(slowest.p99)} (p99), {_waiting(seen)}"
    if seen.stack and seen.busy and not seen.waits:
        text += f"; it was at {seen.stack[0]}"
    yield Cause(
        "slow_handler",
        max(seconds, slowest.p99 * share),
        text,
        "make it shorter: give what it awaits a timeout, run blocking work with "
        "@handler(thread=True), or divide its work among entities",
    )


def _loop(place: EntityPlace, seen: EntityFigures) -> Iterator[Cause]:
    """Yield the causes that keep the loop of the home busy."""
    strained = seen.node_busy >= BUSY_PART or seen.lag >= SLOW_S
    late = max(seen.lag, SLOW_S)
    load = f"which is {_part(seen.node_busy)} busy, its loop {span(seen.lag)} late"
    if strained and seen.shard_part >= HOT_PART and _slowest(seen).mean < LONG_S:
        yield _hot(place, seen, late, load)
    if seen.blocked:
        yield Cause(
            "blocked_loop",
            late,
            f"a handler blocked the loop of {place.home}: {seen.blocked[-1]}",
            "mark that handler @handler(thread=True), or let it await",
        )
    elif strained and seen.shard_part < HOT_PART:
        yield Cause(
            "busy_node",
            late,
            f"its home is {place.home}, {load}; its shard gets {_part(seen.shard_part)} of the "
            "node's messages",
            "see `shardbus load`; move shards away (`shardbus place`, `rebalance`), or add a node",
        )


def _hot(place: EntityPlace, seen: EntityFigures, late: float, load: str) -> Cause:
    text = (
        f"its shard {place.shard} gets {_part(seen.shard_part)} of the messages of {place.home}, "
        f"{load}; {_part(seen.entity_part)} of them are for this entity"
    )
    remedy = (
        "move the shard to a node of its own (`shardbus place`), balance by load "
        '(`allocation = "least_load"`), or use more shards'
    )
    if seen.entity_part >= ALONE_PART:
        text += ": moving the shard does not help"
        remedy = "send it less, divide it into several entities, or declare instances for reading"
    return Cause("hot_shard", late, text, remedy)
