"""A node with one page of everything behind real HTTP, and a shell that runs commands here."""

from __future__ import annotations

from typing import Any

import pytest

import shardbus
from shardbus.errors import (
    ConfigError,
    Refused,
)
from shardbus.http.page import Check, Checks, Events, Json
from shardbus.wire.schema import encode_value
from shardbus.wire.shown_state import shown
from shardbus_cli.main import run
from tests.page_doubles import PageDouble

ME = "127.0.0.1:7355#00000000000000aa"
LETTER: Json = {
    "id": "00000000000000aa-17",
    "at": "2026-01-02T03:04:05.000+00:00",
    "node": ME,
    "type": "page",
    "reason": "failed",
    "entity": "a\x1b[31mé",
    "method": "hit",
    "sender": "client#1",
    "answered": False,
    "trace": "",
    "bytes": 9,
    "kept": True,
}


OUTBOX: dict[str, Any] = {
    "name": "orders\x1b",
    "producer": "client#1/ab",
    "open": True,
    "opened": "2026-01-02T03:04:05.000+00:00",
    "pending": 3,
    "oldest": "2026-01-02T03:04:05.000+00:00",
    "age": 65.5,
    "type": "page",
    "id": "a",
    "method": "hit",
}


class FakeNode(PageDouble):
    """A node with one of everything; ids may be hostile."""

    cluster_name = "shop"

    def __init__(self) -> None:
        self.acts: list[tuple[object, ...]] = []
        self.left, self.stuck = 100, False
        self.looked = 0
        self.status = "up"

    async def answer(self, page: str, *values: object) -> Json:
        if page not in ("leave", "join", "shut_down"):
            raise NotImplementedError(page)
        self.acts.append((page, *values))
        return {page: True}

    async def outboxes(self, limit: int) -> Json:
        self.acts.append(("outboxes", limit))
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"outboxes": [OUTBOX], "more": limit == 1, "silent": silent}

    async def outbox(self, name: str, limit: int, after: int) -> Json:
        self.acts.append(("outbox", name, limit, after))
        row = {"type": "page", "id": "a\x1b[31mé", "method": "hit", "bytes": 9, "taken": "noon"}
        numbers = range(after + 1, min(after + limit, OUTBOX["pending"]) + 1)
        messages = [{**row, "number": number} for number in numbers]
        return {**OUTBOX, "open": not self.stuck, "messages": messages, "silent": []}

    async def retry_outbox(self, name: str, operator: str) -> Json:
        self.acts.append(("retry", name))
        failed = {"poison": 1} if self.stuck else {}
        return {"name": name, "confirmed": 2, "failed": failed, "left": int(self.stuck)}

    async def drop_outbox(self, name: str, operator: str, number: int) -> Json:
        self.acts.append(("drop", name, number))
        if self.stuck:
            raise Refused("the outbox is open in a process", hint="end that process")
        return {"name": name, "dropped": 1 if number else 3, "left": 2 if number else 0}

    async def readyz(self) -> Checks:
        return {"member": Check(self.ready, "joining")}

    async def cluster(self) -> Json:
        return {
            "cluster": "shop",
            "self": ME,
            "status": "up",
            "unreachable": [],
            "coordinators": {"counter": {"node": ME, "epoch": 3}},
        }

    async def nodes(self) -> Json:
        member = {
            "node": ME,
            "address": "127.0.0.1:7355",
            "status": self.status,
            "reachable": True,
            "roles": ["web", "backend"],
            "shards": {"counter": self.left - self.left // 3, "page": self.left // 3},
            "entities": {"counter": 7},
            "state_bytes": {"counter": 2**19},
            "version": "1.2",
            "oldest": True,
            "leader": True,
        }
        if self.left < 100 and not self.stuck:
            self.left = max(0, self.left - 1)
        other = {
            "node": "10.0.0.9:1#1",
            "address": "10.0.0.9:1",
            "reachable": False,
            "suspended": "suspended, because no consent of 10.0.0.7:1#2",
        }
        return {"nodes": [member, member | other]}

    async def overview(self) -> Json:
        handled = {"handled": [0, 99, 1], "waited": [100, 0, 0], "failures": 3, "received": 100}
        return {
            "at": 1.0,
            "latency_bounds": [0.001, 0.25],
            "types": [{"type": "counter"}, {"type": "book"}],
            "nodes": [
                {
                    "node": ME,
                    "answered": True,
                    "types": {"counter": handled},
                    "dropped": [["counter", "expired", 4], ["", "early", 1]],
                },
                {"node": "10.0.0.9:1#1", "answered": False, "types": None, "dropped": None},
            ],
        }

    async def findings(self) -> Json:
        group = {
            "check": "not-registered",
            "level": "warning",
            "of": "counter",
            "subjects": [ME],
            "what": "is not \x1b[1mregistered",
            "advice": "see the logs",
            "confirmed": True,
        }
        passing = group | {"what": "may be gone", "confirmed": False}
        lost = {"node": "10.0.0.8:1#1", "at": "2026-01-02", "by": None, "why": "", "shards": {}}
        counts = {"members": 2, "types": 2, "shards": 101}
        page = {"findings": [group, passing], "lost": [lost], "failures": []}
        return {"cluster": "shop", **counts, **page}

    async def types(self) -> Json:
        return {
            "types": [
                {"type": "counter", "shards": 100},
                {"type": "book", "shards": 100, "layout": "library.by_title/100"},
            ]
        }

    async def shards(self, type: str) -> Json:
        if type != "counter":
            raise shardbus.errors.UnknownEntityType(f"no entity type {type!r}", hint="see types")
        row = {"shard": "1", "node": None, "state": "unallocated", "fence": 0, "entities": 0}
        return {"type": type, "shards": [row]}

    async def partitions(self, type: str) -> Json:
        other, gone = "n1:7355#01", "n9:1#09"
        nodes = {"17": [other, ME], "18": [ME, gone]}
        partitions = [
            {"shard": shard, "instances": [{"instance": k, "node": n} for k, n in enumerate(at, 1)]}
            for shard, at in nodes.items()
        ]
        return {"type": type, "instances": 2, "nodes": [ME, other], "partitions": partitions}

    async def where(self, type: str, id: str) -> Json:
        return {"type": type, "id": id, "shard": "7", "node": ME, "running": True}

    async def entities(self, shard: str, prefix: str, limit: int, cursor: str, **_: Any) -> Json:
        rows = [{"id": f"{prefix}\x1b[31mé", "shard": shard or "7", "node": ME}]
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"entities": rows * min(limit, 2), "next": "abc", "silent": silent}

    async def stored(self, type: str, shard: str, prefix: str, cursor: str, **_: Any) -> Json:
        row = {"id": f"{prefix}\x1b[31mé", "shard": shard or "7"}
        if prefix == "late" and cursor != "2":  # the first pages are empty
            return {"type": type, "stored": [], "next": "1" if cursor is None else "2"}
        return {"type": type, "stored": [row], "next": "abc" if cursor is None else None}

    async def state(self, type: str, id: str, operator: str, text: bool) -> Json:
        data = None if id == "gone" else encode_value({"n": 1})
        return {"type": type, "id": id, "shard": "7", **shown(data)}

    async def set_state(self, type: str, id: str, state: Any, revision: str, **_: Any) -> Json:
        if revision not in ("", "abc"):
            raise shardbus.errors.StateChanged(f"{id!r} has changed meanwhile", hint="read it")
        return {"type": type, "id": id, "state": state, "removed": False}

    async def remove_state(
        self, type: str, id: str, operator: str, revision: str, keep_messages: bool = False
    ) -> Json:
        if id == "awaited" and not keep_messages:
            raise shardbus.errors.Refused("3 messages wait", hint="with --keep-messages")
        return {"type": type, "id": id, "removed": id != "gone", "revision": revision}

    async def explain(self, type: str, id: str) -> Json:
        page: Json = {"type": type, "id": id, "because": "least shards", "history": None}
        if id == "older":  # a node of an earlier release knows no causes
            return page
        slow = {"cause": "slow_handler", "text": "`add` takes 240 ms\x1b[1m", "remedy": "do less"}
        stuck = {"cause": "stuck_mailbox", "text": "`wait` has run since", "remedy": "end it"}
        causes = {"slow": [slow, stuck]}.get(id, [])
        return {**page, "causes": causes, "figures": None if id == "silent" else {"mailbox": 3}}

    async def explain_shard(self, type: str, shard: str) -> Json:
        move = {"at": "12:00", "from": "n1", "to": ME, "why": "drain", "epoch": 2, "fence": 9}
        moves = [move | {"seconds": 0.02}] if shard == "7" else []
        return {"type": type, "shard": shard, "node": ME, "history": moves}

    async def downing(self) -> Json:
        decision = {"outcome": "down others", "reason": "majority", "down": [ME], "gone": []}
        return {"node": ME, "strategy": "keep-majority", "decisions": [decision]}

    async def recent_events(self, within: float, limit: int) -> Json:
        self.looked += 1
        row = {"at": "2026-01-02T03:04:05+00:00", "seen_by": ME, "number": self.looked}
        row |= {"event": "MemberUp", "type": "", "node": ME, "text": "up \x1b[31m" * 2000}
        return {"time": "2026-01-02T03:05:05+00:00", "events": [row], "silent": []}

    async def load(self) -> Json:
        busy = {"busy": 0.5, "lag": 0.004, "rss": 52428800.0, "gc": 0.01, "mailbox": 7.0}
        return {
            "node": ME,
            "nodes": [{"node": ME, **busy, "rate": 1234.5, "age": 0.0}],
            "unseen": ["127.0.0.1:9#9"],
            "looks": 1,
            "hottest": [
                {"type": "page", "shard": "3", "node": ME, "load": 42.0, "unit": "entities"}
            ],
        }

    async def checkup(self) -> Json:
        return {"node": ME, "members": [], "store": {}}

    async def gossip(self) -> Json:
        return {"node": ME, "version": "0", "seen": [ME], "waiting_for": []}

    async def events(self) -> Events:
        yield {"event": "snapshot"}

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        self.acts.append(("plan", type, add, *remove))
        rows = [
            {"node": ME, "before": 4, "after": 2},
            {"node": "new-1:1#0", "before": 0, "after": 2},
        ]
        moves = [{"shard": s, "from": ME, "to": "new-1:1#0"} for s in "13"]
        rounds = 1 if add or not remove else 0
        page = {"type": type, "moves": moves, "nodes": rows, "rounds": rounds, "settled": add < 5}
        return page | {"held": "an operator has paused it" if add else ""}

    async def places(self, type: str) -> Json:
        return {"type": type, "places": [{"shard": "7", "place": "10.0.0.3:1", "node": None}]}

    async def place(self, type: str, set: tuple[str, ...]) -> Json:
        self.acts.append(("place", type, *set))
        return await self.places(type)

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        self.acts.append(("rebalance", type, pause, moves))
        return {"rebalancing": not pause, "paused": pause, "moves_at_a_time": moves}

    async def stop(self, type: str, shard: tuple[str, ...]) -> Json:
        self.acts.append(("stop", type, *shard))
        left = shard if self.stuck else shard[1:]
        return {"type": type, "stopped": shard[: len(shard) - len(left)], "stopping": left}

    async def limits(self, type: str) -> Json:
        rows = [{"node": ME, "limit": 500, "entities": 7, "evicted": 3}]
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"type": type, "strategy": "lru", "nodes": rows, "silent": silent}

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        self.acts.append(("limit", type, limit, node))
        return await self.limits(type)

    async def dead_letters(self, type: str, reason: str, since: float, limit: int) -> Json:
        self.acts.append(("dead-letters", type, reason, since, limit))
        silent = ["10.0.0.9:1#1"] if self.stuck else []
        return {"letters": [LETTER] * min(limit, 2), "more": limit == 1, "silent": silent}

    async def replay(self, **asked: Any) -> Json:
        names = ("type", "reason", "since", "id", "limit", "answered", "dry_run")
        self.acts.append(("replay", *(asked[name] for name in names)))
        reason, dry_run, limit = asked["reason"], asked["dry_run"], asked["limit"]
        if reason == "schema":
            raise Refused("each of 2 letters: its body was not kept", hint="set a size")
        failed = [{"id": LETTER["id"], "why": "no\x1b[31m room"}] if self.stuck else []
        sent = 0 if dry_run else 2 - len(failed)
        return {
            "dry_run": dry_run,
            "letters": [LETTER] * 2,
            "sent": sent,
            "failed": failed,
            "without_body": 1,
            "more": limit == 2,
            "silent": [],
        }

    async def shutdown_region(self, node: str, type: str) -> Json:
        self.acts.append(("shutdown-region", node, type))
        self.left = 2
        return {"node": ME, "type": type, "shards": 2}

    async def cordon(self, node: str) -> Json:
        return self._serve(node, "cordoned")

    async def uncordon(self, node: str) -> Json:
        return self._serve(node, "open")

    async def drain(self, node: str) -> Json:
        self.left = 2
        return self._serve(node, "draining")

    def _serve(self, node: str, service: str) -> Json:
        self.acts.append((service, node))
        return {"node": ME, "service": service}

    async def down(self, node: str, force: bool) -> Json:
        if node != ME:
            raise ConfigError(f"no member {node!r}", hint="see `shardbus nodes`")
        self.acts.append(("down", node, force))
        return {"down": node}


class Shell:
    """Runs commands in this process and keeps their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str, debug: bool = False) -> int:
        code = run(list(words), debug=debug)
        self.out, self.err = self._capsys.readouterr()
        return int(code)
