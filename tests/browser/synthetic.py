"""A cluster that exists only in its answers, behind the real HTTP interface of a node: routes,
guard, tokens and page are the same as on every node. Tests change it and read the page."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from shardbus.admin.diagnosis import Picture, findings
from shardbus.admin.examination import grouped
from shardbus.admin.load_history import COLUMNS
from shardbus.config.settings import HttpSettings
from shardbus.errors import StateChanged
from shardbus.histograms import LATENCY_BOUNDS
from shardbus.http.app import create_app
from shardbus.http.page import Events, Json
from shardbus.http.server import Server
from shardbus.wire.plain_json import from_json
from shardbus.wire.schema import encode_value
from shardbus.wire.shown_state import as_text, shown
from shardbus.wire.stored_state import revision_of
from tests.unit.http.http_kit import FakeNode

TYPE = "cart"
MIB = 2**20


class Fleet(FakeNode):
    """Some nodes, each with its part of the shards of one type, or of several."""

    def __init__(self, nodes: int, shards: int, types: tuple[str, ...] = (TYPE,)) -> None:
        super().__init__()
        self.names = [f"10.0.{n // 250}.{n % 250 + 1}:7355#{n + 1:016x}" for n in range(nodes)]
        self.types_ = types
        self.rows = {str(s): [s % nodes, "r"] for s in range(shards)}
        self.ids = [f"{TYPE}-{n}" for n in range(250)]
        self.unreachable: set[str] = set()
        self.service: dict[str, str] = {}
        self.changes: list[list[Any]] = []
        self.write = True
        self.version = 1
        self.began, self.grows_by = time.monotonic() - 1.0, 120
        self.received = 0
        self.drops: list[list[Any]] = [["cart", "expired", 3]]
        self.letters = [self.letter("cart", "expired", f"cart-{n}") for n in (2, 1)]
        self.reports: list[Json] = []
        self.lost: list[Json] = []
        self.failures: list[Json] = []
        self.failed: dict[str, int] = {}
        """Failures of each node, by type."""
        self.extra_findings: list[Json] = []
        """Findings in addition to the overview's."""
        self.rates: dict[str, dict[str, float]] = {}
        self.ended: list[Json] = []
        """Nodes of the hour that are members no more: `node`, and `ago`."""
        self.hour: list[Json] = []
        """Steps of the hour that the nodes have kept: `ago`, and some of the columns."""
        self.handling = [
            self.handler("add", "item: str, count: int = 1", calls=1200, p50=0.0004, p99=0.012),
            self.handler("total", ""),
        ]
        self.sent: list[tuple[object, ...]] = []
        self.failure_of_send: Json | None = None
        self.zone = "east"
        self.posted: list[tuple[str, ...]] = []
        self.looked: list[str] = []
        self.saved: dict[str, bytes] = {}
        self.failure_of_save: Exception | None = None
        self._events: set[asyncio.Queue[Json]] = set()

    # ---- actions of tests

    def move(self, shard: str, node: int, why: str = "rebalance") -> None:
        """Give a shard another home."""
        before = self.names[self.rows[shard][0]]
        self.rows[shard] = [node, "r"]
        self.changes.insert(0, [shard, 0.0, before, self.names[node], why, 0.012])
        self.version += 1

    def cut(self, node: int) -> None:
        """Let a node be unreachable."""
        name = self.names[node]
        self.unreachable.add(name)
        self.tell("UnreachableMember", name, f"{name} is unreachable")

    def tell(self, event: str, node: str | None, text: str) -> None:
        """Send an event to every page."""
        for queue in self._events:
            queue.put_nowait({"event": event, "node": node, "text": text})

    def letter(self, type: str, reason: str, entity: str) -> Json:
        """A dropped message."""
        return {
            "id": "0000000000000001-7",
            "at": "2026-01-01T00:00:00Z",
            "node": self.names[0],
            "type": type,
            "reason": reason,
            "entity": entity,
            "method": "add",
            "sender": "client#1",
            "answered": False,
            "trace": "",
            "bytes": 12,
            "kept": True,
        }

    def handler(
        self, name: str, parameters: str | None, type: str = TYPE, calls: int = 0, **more: Any
    ) -> Json:
        """A handler as its nodes have counted it."""
        times = {"p50": None, "p99": None}
        counted = {"calls": calls, "rate": calls / 300, "failures": 0, "last": []}
        return {"type": type, "handler": name, "parameters": parameters, **counted, **times, **more}

    def exception(self, text: str) -> Json:
        """An exception of a handler, as the page of handlers shows it."""
        stack = f"Traceback (most recent call last):\n  in pay\nValueError: {text}"
        where = {"node": self.names[0], "at": "2026-01-01T00:00:00Z", "entity": "cart-7"}
        return {**where, "error": "ValueError", "text": text, "stack": stack}

    # ---- requests of the page

    async def overview(self) -> Json:
        self.received = int((time.monotonic() - self.began) * self.grows_by / 2)
        return {
            "cluster": self.cluster_name,
            "self": self.names[0],
            "status": "up",
            "leader": self.names[0],
            "oldest": self.names[0],
            "converged": not self.unreachable,
            "suspended": None,
            "unreachable": sorted(self.unreachable),
            "at": time.time(),
            "build": "0.1.0",
            "write": self.write,
            "latency_bounds": LATENCY_BOUNDS,
            "types": [
                {
                    "type": name,
                    "within": [],
                    "shards": len(self.rows),
                    "coordinator": self.names[0],
                    "state": name == TYPE,
                }
                for name in self.types_
            ],
            "nodes": [self._row(n, name) for n, name in enumerate(self.names)],
        }

    def _row(self, n: int, name: str) -> Json:
        here = sum(row[0] == n for row in self.rows.values())
        reachable = name not in self.unreachable
        counts = {"shards": here, "entities": 10 * here, "received": self.received}
        times = {"handled": [0, 0, self.received], "waited": [self.received]}
        facts: Json = {
            "types": {
                t: {**counts, "failures": self.failed.get(t, 0), "buffered": 0, **times}
                for t in self.types_
            },
            "vitals": {
                "busy": 0.08 * (n % 11),
                "lag": 0.002,
                "rss": (60 + n) * MIB,
                "gc": 0.0,
                "mailbox": n % 3,
                "rate": self.grows_by / 2,
            },
            "dropped": self.drops,
            "slow": [],
            "late": 0,
            "store": [self.received, self.received * 0.0012, 0],
        }
        return {
            "node": name,
            "address": name.partition("#")[0],
            "http": "",
            "status": "up",
            "reachable": reachable,
            "answered": reachable,
            "suspended": None,
            "roles": ["web"] if n % 2 else ["web", "batch"],
            "version": "2.4.1",
            "zone": self.zone,
            "service": self.service.get(name, "open"),
            "oldest": n == 0,
            "leader": n == 0,
            **(facts if reachable else dict.fromkeys(facts)),
        }

    async def shard_map(self, type: str, known: str) -> Json:
        head = {
            "type": type,
            "coordinator": self.names[0],
            "epoch": 3,
            "complete": True,
            "version": f"3.{self.version}",
            "paused": False,
            "held": "",
            "moving": sum(row[1] == "h" for row in self.rows.values()),
            "moves_at_a_time": 3,
        }
        if known == head["version"]:
            columns = ("nodes", "shards", "homes", "states", "changes")
            return {**head, **dict.fromkeys(columns)}
        return {
            **head,
            "nodes": self.names,
            "shards": list(self.rows),
            "homes": [row[0] for row in self.rows.values()],
            "states": "".join(row[1] for row in self.rows.values()),
            "changes": self.changes[:50],
        }

    async def shard_maps(self, known: tuple[str, ...]) -> Json:
        pairs = [text.rpartition("=")[::2] for text in known]
        return {"maps": [await self.shard_map(*text) for text in pairs]}

    async def shard_rates(self) -> Json:
        return {"rates": self.rates, "silent": []}

    async def history(self) -> Json:
        names = ("nodes", *COLUMNS)
        rows = [[step["ago"], *(step.get(name, 0) for name in names)] for step in self.hour]
        head = {"at": time.time(), "step": 10, "columns": ["ago", *names]}
        return {**head, "rows": rows, "silent": [], "ended": self.ended}

    async def handlers(self, type: str) -> Json:
        rows = [row for row in self.handling if type in ("", row["type"])]
        return {"handlers": rows, "silent": []}

    async def send(
        self, type: str, id: str, arguments: object, operator: str, handler: str, **how: Any
    ) -> Json:
        self.sent.append((type, id, handler, arguments, how["tell"]))
        head = {"type": type, "id": id, "handler": handler or "receive", "seconds": 0.003}
        answer = '{\n  "big": 9223372036854775807\n}'
        answered = not how["tell"] and self.failure_of_send is None
        return {**head, "answer": answer if answered else None, "error": self.failure_of_send}

    async def shards(self, type: str) -> Json:
        rows = [
            {"shard": s, "node": self.names[row[0]], "state": "running", "fence": 1, "entities": 4,
             "load": None}
            for s, row in self.rows.items()
        ]  # fmt: skip
        return {"type": type, "load_unit": "messages/s", "shards": rows}

    async def explain(self, type: str, id: str) -> Json:
        self.looked.append(id)
        return {
            "type": type,
            "id": id,
            "shard": "7",
            "node": self.names[0],
            "state": "running",
            "running": id in self.ids,
            "fence": 4294967297,
            "coordinator": self.names[0],
            "epoch": 3,
            "why": "the home is known, messages go there directly",
            "causes": [
                {
                    "cause": "slow_handler",
                    "seconds": 7.4,
                    "text": "its handler `add` takes 240 ms (p99), 31 messages wait",
                    "remedy": "make it shorter",
                }
            ],
            "figures": {"mailbox": 31},
            "suspended": None,
            "buffered": {"messages": 0, "bytes": 0},
            "history": [],
        }

    async def explain_shard(self, type: str, shard: str) -> Json:
        return {
            "type": type,
            "shard": shard,
            "node": self.names[self.rows[shard][0]],
            "state": "running",
            "fence": 4294967297,
            "coordinator": self.names[0],
            "epoch": 3,
            "history": [
                {"at": "2026-01-02T03:04:05.678+00:00", "from": a, "to": b, "why": why,
                 "epoch": 3, "fence": 1, "seconds": took}
                for s, _, a, b, why, took in reversed(self.changes)
                if s == shard
            ],
        }  # fmt: skip

    async def entities(self, shard: str, prefix: str, limit: int, cursor: str, **_: Any) -> Json:
        page_ids = sorted(i for i in self.ids if i.startswith(prefix) and i > (cursor or ""))
        page = page_ids[:limit]
        rows = [{"id": i, "shard": shard or "7", "node": self.names[0]} for i in page]
        return {"entities": rows, "next": page[-1] if len(page_ids) > limit else None, "silent": []}

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        going = [s for s, row in self.rows.items() if self.names[row[0]] in remove]
        left = [name for name in self.names if name not in remove]
        before = {n: sum(r[0] == i for r in self.rows.values()) for i, n in enumerate(self.names)}
        after = {**before, **dict.fromkeys(remove, 0)}
        for i, _ in enumerate(going):
            after[left[i % len(left)]] += 1
        return {
            "type": type,
            "moves": [{"shard": s, "from": remove[0], "to": left[0]} for s in going],
            "nodes": [{"node": n, "before": before[n], "after": after[n]} for n in self.names],
            "rounds": 1,
            "settled": True,
            "held": "",
        }

    async def state(self, type: str, id: str, operator: str, text: bool) -> Json:
        assert text, "a browser reads no numbers of a state"
        self.looked.append(f"state of {id}")
        return {"type": type, "id": id, "shard": "7", **as_text(shown(self.saved.get(id), 5_000))}

    async def set_state(self, type: str, id: str, state: Any, revision: str, **_: Any) -> Json:
        return self._save(type, id, encode_value(from_json(state)), revision)

    async def remove_state(
        self, type: str, id: str, operator: str, revision: str, keep_messages: bool
    ) -> Json:
        return self._save(type, id, None, revision)

    def _save(self, type: str, id: str, data: bytes | None, revision: str) -> Json:
        if self.failure_of_save is not None:
            raise self.failure_of_save
        if revision != revision_of(self.saved.get(id)):
            raise StateChanged(f"the stored state of {type} {id!r} has changed meanwhile")
        if data is None:
            del self.saved[id]
        else:
            self.saved[id] = data
        return {"type": type, "id": id, "node": self.names[0], "bytes": len(data or b"")}

    async def cordon(self, node: str) -> Json:
        return self._serve(node, "cordoned")

    async def uncordon(self, node: str) -> Json:
        return self._serve(node, "open")

    async def drain(self, node: str) -> Json:
        return self._serve(node, "draining")

    def _serve(self, node: str, service: str) -> Json:
        self.posted.append((node, service))
        self.service[node] = service
        return {"node": node, "service": service}

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        self.posted.append(("rebalance", type))
        return {"type": type}

    async def settings(self) -> Json:
        rows: list[Json] = [
            {"setting": "node.port", "value": 7355, "origin": "default"},
            {"setting": "node.zone", "value": self.zone, "origin": "--set node.zone"},
        ]
        return {"node": self.names[0], "settings": rows}

    async def dead_letters(self, type: str, reason: str, since: float, limit: int) -> Json:
        letters = [
            letter
            for letter in self.letters
            if type in ("", letter["type"]) and reason in ("", letter["reason"])
        ]
        return {"letters": letters[:limit], "more": len(letters) > limit, "silent": []}

    async def replay(self, type: str, reason: str, limit: int, dry_run: bool, **_: Any) -> Json:
        """Send every letter of the type and reason."""
        page = await self.dead_letters(type, reason, 0.0, limit)
        if not dry_run:
            self.posted.append(("replay", type, reason))
            self.letters = [letter for letter in self.letters if letter not in page["letters"]]
        sent = 0 if dry_run else len(page["letters"])
        more = {"dry_run": dry_run, "sent": sent, "failed": [], "without_body": 0}
        return page | more

    async def recent_events(self, within: float, limit: int) -> Json:
        now = time.time()
        before = {"at": _time(now - 60), "seen_by": self.names[0], "number": 1}
        drained = {"event": "rebalance", "type": TYPE, "node": None, "text": "two shards move"}
        return {"time": _time(now), "events": [before | drained], "silent": []}

    async def findings(self) -> Json:
        cluster = await self.overview()
        all_findings = [*self.extra_findings, *grouped(findings(Picture(cluster=cluster)))]
        return {"findings": all_findings, "lost": self.lost, "failures": self.failures}

    async def slow(self) -> Json:
        return {"handlers": self.reports, "silent": []}

    async def events(self) -> Events:
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self._events.add(queue)
        try:
            members = [
                {"node": n, "status": "up", "reachable": n not in self.unreachable, "roles": []}
                for n in self.names
            ]
            yield {"event": "snapshot", "leader": None, "converged": True, "members": members}
            while True:
                yield await queue.get()
        finally:
            self._events.discard(queue)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class Served:
    """A fleet behind the HTTP interface of a node, on a free port of the loopback."""

    def __init__(self, fleet: Fleet, settings: HttpSettings | None = None) -> None:
        self.fleet = fleet
        self.server = Server(create_app(fleet.pages, settings or HttpSettings()), "127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/ui"
