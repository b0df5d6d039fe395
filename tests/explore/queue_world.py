"""The world of one work queue: two producers, two workers, and homes that die.

    a puts, a repeats      the first producer puts its next item, or the last one again; also b
    x pulls                the first worker pulls; also y
    x repeats              it pulls again under its last token: the answer did not reach it
    x confirms, x fails    it is done with its item, or gives it back
    x extends, x cancels   its lease begins anew; its last pull is void
    late                   the confirmation of an item whose lease has ended
    lease, second          time passes
    crash                  the home dies
    lose                   it dies after the next request was stored, before the answers left
    retry                  an operator lets items be tried again

Laws: an item is leased to one worker at a time; a confirmed item is never leased again; an item
that was put is in the queue until it is confirmed, once; a replay of the events gives the state.
At rest each item is either set aside or worked, and the queue is empty then.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from typing import Any

from shardbus.deliveries.work_items import (
    CancelPull,
    ConfirmWork,
    ExtendWork,
    ItemPlace,
    PullWork,
    PutWork,
    QueueEvent,
    QueueRules,
    QueueState,
    Request,
    RetryWork,
    ReturnWork,
    WorkItems,
)

RULES = QueueRules(lease=10.0, attempts=2, limit=2, backoff=1.0)
WAIT_S = 3.0


class WorkerRow:
    """What a worker has: the token of its last pull, and items with the ends of their leases."""

    def __init__(self, name: str) -> None:
        self.name, self.pulls = name, 0
        self.items: dict[int, float] = {}
        self.began: set[int] = set()

    @property
    def token(self) -> str:
        return f"{self.name}/{self.pulls}"


class QueueWorld:
    """The queue, its store, and those who use it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now, self.ticket = 100.0, 0
        self.stored = QueueState()
        self.machine = WorkItems(copy.deepcopy(self.stored), RULES, self.now)
        self.sent = {"a": 0, "b": 0}
        """The number of the last item that each producer has put."""
        self.workers = {name: WorkerRow(name) for name in "xy"}
        self.waiting: dict[int, tuple[str, Request]] = {}
        self.bodies: dict[int, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.put: set[bytes] = set()
        """The bodies that the queue has acknowledged."""
        self.loses = False
        """The next answers do not leave."""

    def events(self) -> Iterable[str]:
        found = ["second", "lease", "crash", "late"] + ["lose"] * (not self.loses)
        for name, number in self.sent.items():
            found += [f"{name} puts"] + [f"{name} repeats"] * (number > 0)
        for name, worker in self.workers.items():
            found.append(f"{name} pulls")
            if worker.pulls:
                found += [f"{name} repeats", f"{name} cancels"]
            if worker.items:
                found += [f"{name} confirms", f"{name} fails", f"{name} extends"]
        if self.machine.aside:
            found.append("retry")
        return found

    def do(self, event: str) -> None:
        match event.split():
            case ["second"]:
                self._pass(1.0)
            case ["lease"]:
                self._pass(RULES.lease)
            case ["crash"]:
                self._crash()
            case ["lose"]:
                self.loses = True
            case ["late"]:
                for number in sorted(self.bodies):
                    if self.bodies[number] in self.put and self.machine.state.items.get(number):
                        self._confirm("late", [number])
                        break
            case ["retry"]:
                numbers = list(self.machine.state.items)
                self._request("retry", RetryWork(numbers))
            case [name, verb] if name in self.sent:
                self.sent[name] += verb == "puts"
                number = self.sent[name]
                self._request(name, PutWork([f"{name}{number}".encode()], name, number, WAIT_S))
            case [name, verb]:
                self._do(self.workers[name], verb)

    def _do(self, worker: WorkerRow, verb: str) -> None:
        items = list(worker.items)
        match verb:
            case "pulls":
                worker.pulls += 1
                self._request(worker.name, PullWork(worker.token, 1, WAIT_S))
            case "repeats":
                self._request(worker.name, PullWork(worker.token, 1, WAIT_S, again=True))
            case "cancels":
                for number, _ in list(worker.items.items()):
                    if self._holder(number) == worker.token:
                        del worker.items[number]
                self._request(worker.name, CancelPull(worker.token))
            case "confirms":
                worker.items.clear()
                self._confirm(worker.name, items)
            case "fails":
                worker.items.clear()
                for number in items:
                    if self._holder(number).startswith(worker.name):
                        held = ReturnWork(self._holder(number), [number], "failed")
                        self._request(worker.name, held)
            case "extends":
                for number in items:
                    holder = self._holder(number)
                    if holder.startswith(worker.name):
                        self._request(worker.name, ExtendWork(holder, [number]))

    def _holder(self, number: int) -> str:
        item = self.machine.state.items.get(number)
        return "" if item is None else item.holder

    def _confirm(self, name: str, numbers: list[int]) -> None:
        self.confirmed |= {self.bodies[number] for number in numbers}
        self._request(name, ConfirmWork(numbers))

    # ---- the queue

    def _request(self, name: str, request: Request) -> None:
        self.ticket += 1
        self.waiting[self.ticket] = (name, request)
        self.machine.handle(self.ticket, request, self.now)
        self._step()
        if self.loses:
            self.loses = False
            self._crash()

    def _step(self) -> None:
        events, done = self.machine.step(self.now)
        for event in copy.deepcopy(events):
            self._note(event)
        self.machine.check()
        assert self.stored == self.machine.state, "a replay gives another state"
        for ticket, value in done:
            name, request = self.waiting.pop(ticket)
            if not self.loses:
                self._answer(name, request, value)

    def _note(self, event: QueueEvent) -> None:
        self.stored.apply(event)
        self.said.append(str(event))

    def _answer(self, name: str, request: Request, value: Any) -> None:
        match request:
            case PutWork():
                self.put |= set(request.bodies[:value])
            case PullWork():
                worker = self.workers[name]
                for number, attempt, lease, body in value:
                    assert 0 < lease <= RULES.lease + request.wait, "a lease of no use"
                    assert attempt >= 1
                    assert body not in self.confirmed, f"{body!r} was confirmed"
                    others = [o for o in self.workers.values() if o is not worker]
                    for other in others:
                        ends = other.items.get(number, 0.0)
                        assert ends <= self.now, f"{other.name} and {name} have {number}"
                    self.bodies[number] = body
                    worker.items[number] = self.now + lease
            case ExtendWork():
                for number in value[0]:
                    self.workers[name].items[number] = self.now + value[1]
            case _:
                pass

    def _crash(self) -> None:
        """The next home begins with what is stored, and those who wait come again."""
        self.waiting.clear()
        self.machine = WorkItems(copy.deepcopy(self.stored), RULES, self.now)
        self._step()

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.machine.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self._step()
            after = self.machine.deadline()
            assert after is None or after > self.now, "a step leaves what is due"
        self.now = end

    def key(self) -> Hashable:
        state = self.machine.state
        rows = [
            (number - state.last, item.place, item.attempts, round(item.until - self.now, 3))
            for number, item in state.items.items()
        ]
        workers = [
            (tuple(number - state.last for number in one.items), self._holds(one))
            for one in self.workers.values()
        ]
        return (
            tuple(rows),
            tuple(workers),
            self.machine.waiting,
            tuple(n - state.producers.get(p, 0) for p, n in self.sent.items()),
            len(self.put),
            self.loses,
        )

    def _holds(self, worker: WorkerRow) -> int:
        return sum(self._holder(number) == worker.token for number in worker.items)

    def rest(self) -> None:
        """Workers work on until nothing is left."""
        self.loses = False
        for worker in self.workers.values():
            worker.items.clear()
        for _ in range(20):
            for name, number in self.sent.items():
                if number:
                    self.do(f"{name} repeats")
            self._pass(RULES.lease)
            if self.machine.aside:
                self.do("retry")
            self.do("x pulls")
            for number in self.workers["x"].items:
                assert self.machine.state.items[number].place is ItemPlace.LEASED
            if self.workers["x"].items:
                self.do("x confirms")
        last = {f"{name}{n}".encode() for name, n in self.sent.items() if n}
        assert last <= self.put, f"{last - self.put} was never acknowledged"
        assert not self.machine.state.items, "an item is left"
        assert self.put <= self.confirmed, f"{self.put - self.confirmed} was never worked"
        assert self.machine.state.confirmed == len(self.confirmed), "an item was worked as two"

    def close(self) -> None: ...
