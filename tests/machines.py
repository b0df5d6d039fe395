"""The in-memory network for machines: virtual time, links with faults, a store with faults.

The tests of every kind of machine run on it. Each kind adds an adapter that maps the effects of its
machines to `send` and `FaultyStore.call`, and that has its own invariants in `audit`.

    at, soon, run_to    virtual time; `audit` is called now and then, and the steps are bounded
    send                a message on its way; ordered links keep order, others may overtake
    stall, walls        a link that delivers later; nodes that do not reach each other
    FaultyStore         requests that are slow, fail before or after the work, or find it down
    DeadlineTimer       calls a machine's `tick` when its `deadline` comes

Messages are values here, not encoded. `membership.world` encodes them, and adds clocks that
drift, paused processes and connections; `nodes.network` has connections of whole nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import TypeVar

from shardbus.simulation.timeline import Timeline

T = TypeVar("T")

STEPS_MAX = 200_000
"""More steps within one `run_to` mean that the machines do not come to rest."""
AUDIT_EVERY = 100
"""Steps between two audits."""
FAILING = 0.6
"""The part of requests that a failing store fails, half of them after the work."""
STORE_LATENCY_S = (0.001, 0.02)


class MachineNetwork(Timeline):
    """A network of machines. `dice` draws all that is random; `delay_s` is the range of delays.

    `walls` maps a node to its side; nodes that it does not name are on side 0. Nothing crosses.
    """

    def __init__(
        self,
        dice: Random,
        *,
        delay_s: tuple[float, float],
        loss: float = 0.0,
        ordered: bool = True,
    ) -> None:
        super().__init__()
        self.dice, self.delay_s, self.loss, self.ordered = dice, delay_s, loss, ordered
        self.walls: dict[Hashable, int] = {}
        self._arrivals: dict[tuple[Hashable, Hashable], float] = {}
        self._stalled: dict[tuple[Hashable, Hashable], float] = {}

    def soon(self, action: Callable[[], object]) -> None:
        """Run the action now, behind all that is due now."""
        self.at(self.now, action)

    def run_to(self, end: float) -> None:
        """Let time pass until `end`."""
        steps = 0
        while self.due_by(end):
            self.step()
            steps += 1
            assert steps < STEPS_MAX, "the machines do not come to rest"
            if steps % AUDIT_EVERY == 0:
                self.audit()
        self.now = end

    def audit(self) -> None:
        """Check the invariants of any time. For adapters."""

    def transmit(self, source: Hashable, target: Hashable, deliver: Callable[[], object]) -> bool:
        """Schedule a message's arrival. False if a wall stops it, or if it is lost.

        A message of a node to itself arrives at once, in order.
        """
        cut = self.walls.get(source, 0) != self.walls.get(target, 0)
        if cut or (self.loss and self.dice.random() < self.loss):
            return False
        delay = self.dice.uniform(*self.delay_s) if source != target else 0.0
        arrival = self.now + delay
        if self.ordered:
            link = (source, target)
            last, stalled = self._arrivals.get(link, 0.0), self._stalled.get(link, 0.0)
            arrival = self._arrivals[link] = max(arrival, last, stalled)
        self.at(arrival, deliver)
        return True

    def stall(self, source: Hashable, target: Hashable, seconds: float) -> None:
        """Let messages on this link from now on arrive after `seconds`, in order."""
        self._stalled[source, target] = self.now + seconds

    @property
    def stalled(self) -> bool:
        """True while some link is stalled."""
        return any(until > self.now for until in self._stalled.values())


class FaultyStore:
    """The way to a store and back. `down`: no request arrives. `failing_until`: until then requests
    fail now and then. `slow`: a factor of the latency."""

    def __init__(self, network: MachineNetwork) -> None:
        self.network = network
        self.down = False
        self.failing_until = 0.0
        self.slow = 1.0

    def call(
        self,
        work: Callable[[], T],
        answer: Callable[[T | None], object],
        latency: float | None = None,
    ) -> None:
        """Do the work at the store, unless the request is lost; then answer with its result, or
        with None if there is none. `latency`: of one way, drawn if not given."""
        network, dice = self.network, self.network.dice
        failing = self.down or (network.now < self.failing_until and dice.random() < FAILING)
        applied = not failing or (not self.down and dice.random() < 0.5)
        delay = dice.uniform(*STORE_LATENCY_S) * self.slow if latency is None else latency

        def arrive() -> None:
            result = work() if applied else None
            told = None if failing else result
            network.at(network.now + delay, lambda: answer(told))

        network.at(network.now + delay, arrive)


class DeadlineTimer:
    """Calls `tick` when the deadline of a machine comes. `deadline` returns None while there is no
    machine, or none that lives."""

    def __init__(
        self,
        timeline: Timeline,
        deadline: Callable[[], float | None],
        tick: Callable[[], object],
    ) -> None:
        self._timeline, self._deadline, self._tick = timeline, deadline, tick
        self._due: float | None = None

    def arm(self) -> None:
        """Wake up at the machine's deadline. Call it after each event of the machine."""
        due = self._deadline()
        if due is None or (self._due is not None and self._due <= due):
            return
        self._due = due
        self._timeline.at(max(due, self._timeline.now), lambda: self._fire(due))

    def _fire(self, due: float) -> None:
        if self._due != due:
            return
        self._due = None
        at = self._deadline()
        if at is not None and at <= self._timeline.now:
            self._tick()
        self.arm()
