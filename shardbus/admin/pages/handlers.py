"""The handlers of every type: how often they are called, how long they take, and how they fail; and
how many messages each shard gets.

Both come from a node's usual samples (`entities.message_times`): nothing is measured per message.
So calls are estimates where messages are many, and exact where each run is sampled.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from shardbus.admin.administration import Administration, moment
from shardbus.admin.questions import question
from shardbus.entities.failures import KEPT
from shardbus.entities.message_times import MessageTimes
from shardbus.histograms import Histogram
from shardbus.http.page import EntityType, Json, page
from shardbus.ids import NodeId
from shardbus.shells.region import RegionShell

FRESH_S = 2.0
RATED_S = 30.0
"""Seconds whose samples give the rate of a shard."""
RATED_MAX = 200
"""Shards of a type on a node whose rates it sends: those with the most messages."""


@page("GET", "/v1/handlers")
async def handlers(admin: Administration, type: EntityType = "") -> Json:
    """The handlers of every type, or of one: calls, failures, latencies, and the last exceptions.

    `handlers`, by type and name, each with `type`, `handler` (`receive`, `receive NAME` for a
    message of that class, `on_start` and `on_stop` if they have failed), `parameters` (how they are
    declared, null if it is no handler of this node's application), `calls` and `failures` since
    each node has started, `rate` (calls a second), `p50` and `p99` (seconds, null without a call)
    of the last five minutes, and `last`: three exceptions, newest first, with `node`, `at`,
    `entity`, `error` (the class), `text` and `stack`, which is written once a second for a method,
    else empty; `silent`. Calls and latencies are estimates from samples. Shared for 2 s.
    """
    answer = await admin.shared("handlers", FRESH_S, partial(_ask_members, admin))
    if not type:
        return answer
    admin.region(type)
    rows: Any = answer["handlers"]
    return {**answer, "handlers": [row for row in rows if row["type"] == type]}


@page("GET", "/v1/shard-rates")
async def shard_rates(admin: Administration) -> Json:
    """Messages a second of the shards that have some, by type, from the samples of the last half
    minute.

    `rates`: type to shard to messages a second, of each node the 200 shards of a type with the
    most; `silent`. Shared for 2 s.
    """
    return await admin.shared("shard rates", FRESH_S, partial(_ask_for_rates, admin))


async def _ask_for_rates(admin: Administration) -> Json:
    answers, silent = await admin.ask_all("shard_rates")
    rates: dict[str, Counter[str]] = {}
    for answer in answers.values():
        for name, rows in answer.items():
            rates.setdefault(name, Counter()).update(dict(rows))
    return {"rates": rates, "silent": silent}


class HandlerTotals(msgspec.Struct):
    """All nodes' counts of one handler."""

    parameters: str | None = None
    calls: int = 0
    failures: int = 0
    rate: float = 0.0
    recent: Histogram = msgspec.field(default_factory=Histogram)
    last: list[tuple[float, NodeId, list[str]]] = msgspec.field(default_factory=list)

    def add(self, node: NodeId, answer: list[Any]) -> None:
        """Add a node's counts."""
        calls, failures, counts, seconds, last = answer
        self.calls += calls
        self.failures += failures
        self.rate += sum(counts) / seconds
        self.recent.counts = [a + b for a, b in zip(self.recent.counts, counts, strict=True)]
        self.last = sorted([*self.last, *((age, node, rest) for age, *rest in last)])[:KEPT]

    def row(self, type: str, handler: str, now: datetime) -> Json:
        """Return the handler as the page shows it."""
        called = any(self.recent.counts)
        names = ("entity", "error", "text", "stack")
        return {
            "type": type,
            "handler": handler,
            "parameters": self.parameters,
            "calls": self.calls,
            "rate": round(self.rate, 3),
            "failures": self.failures,
            "p50": self.recent.quantile(0.5) if called else None,
            "p99": self.recent.quantile(0.99) if called else None,
            "last": [
                {"node": str(node), "at": moment(age, now), **dict(zip(names, rest, strict=True))}
                for age, node, rest in self.last
            ],
        }


async def _ask_members(admin: Administration) -> Json:
    answers, silent = await admin.ask_all("handlers")
    totals = {
        (name, handler): HandlerTotals(parameters)
        for name, region in admin.node.regions.items()
        for handler, parameters in _declared(region)
    }
    for node, rows in answers.items():
        for name, handler, *answer in rows:
            totals.setdefault((name, handler), HandlerTotals()).add(node, answer)
    now = datetime.now(UTC)
    return {"handlers": [totals[key].row(*key, now) for key in sorted(totals)], "silent": silent}


def _declared(region: RegionShell) -> Iterator[tuple[str, str]]:
    """Yield the handlers of a type with their parameters."""
    interface = region.entity_type.interface
    for name, method in interface.methods.items():
        yield name, ", ".join(map(_parameter, method.parameters))
    for name in interface.messages:
        yield handler_name(name), "message"


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is declared; the annotations of a module may be texts."""
    declared = parameter.annotation
    if isinstance(declared, str):
        parameter = parameter.replace(annotation=inspect.Parameter.empty)
        default = str(parameter).partition("=")[2]
        return f"{parameter.name}: {declared}" + (f" = {default}" if default else "")
    return str(parameter)


def handler_name(method: str) -> str:
    """Return a method of messages as the application calls it."""
    if method.startswith(":"):
        return f"receive {method[1:]}"
    return method if method and not method.startswith("$") else "receive"


# ---- answers of this node


@question("handlers")
def answer_handlers(admin: Administration) -> list[list[Any]]:
    """The handlers that were called here or have failed: type, name, calls, failures, the times of
    the last minutes as counts by `LATENCY_BOUNDS` and how many seconds these are, and the last
    exceptions, newest first: seconds since then, entity, class, text, stack."""
    now = admin.node.loop.time()
    return [row for name, region in admin.node.regions.items() for row in _rows(name, region, now)]


def _rows(name: str, region: RegionShell, now: float) -> Iterator[list[Any]]:
    times, failed = region.times, region.host.counts.failed.methods
    for method in dict.fromkeys([*times.methods, *failed]):
        called, failures = times.methods.get(method), failed.get(method)
        recent, seconds = times.recent_of(method)
        last = [] if failures is None else reversed(failures.last)
        yield [
            name,
            handler_name(method),
            0 if called is None else called.count,
            0 if failures is None else failures.count,
            list(recent.counts),
            seconds,
            [[now - failure.at, *failure[1:]] for failure in last],
        ]


@question("shard_rates")
def answer_shard_rates(admin: Administration) -> Mapping[str, list[list[Any]]]:
    """Messages a second of the shards here, by type: the shard and its rate. Messages for types
    that live within another are in its shards."""
    now = admin.node.loop.time()
    rates: dict[str, Counter[str]] = {name: Counter() for name in admin.tables}
    for region in admin.node.regions.values():
        rates[region.table.name].update(_rates(region.times, now))
    return {
        name: [[shard, round(rate, 3)] for shard, rate in by_shard.most_common(RATED_MAX)]
        for name, by_shard in rates.items()
    }


def _rates(times: MessageTimes, now: float) -> dict[str, float]:
    since = max(times.reach_back_to, now - RATED_S)
    seconds = max(1.0, now - since)
    rates: dict[str, float] = {}
    for sample in times.recent:
        if sample.arrived >= since and sample.shard:
            rates[sample.shard] = rates.get(sample.shard, 0.0) + sample.weight / seconds
    return rates
