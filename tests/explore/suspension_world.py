"""The world of suspension: one node of four under keep-majority, and the consent that it gets.

    b | c | d consents       to a request that was sent now
    b | c | d consents late  to one that was sent half a contact's lifetime ago
    d joins | d goes         the members change
    step, half, life         a sixteenth, half, or all of a contact's lifetime passes

Laws: while the node may handle messages, members that have consented within a contact's lifetime
are a majority with it. When all have just consented it may, and with none it may not after a
lifetime. It reports each change once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf

from shardbus.config.settings import ClusterSettings
from shardbus.membership.member import Status
from shardbus.membership.suspension import STEPS, Suspension
from shardbus.membership.view import HandlingResumed, HandlingSuspended
from tests.unit.membership.test_gossip import A, B, C, D, state

UP = Status.UP
OTHERS = {"b": B, "c": C, "d": D}
LIFE = ClusterSettings().contact_lifetime


class SuspensionWorld:
    """One machine, and the rule of a majority."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 1000.0
        self.machine = Suspension(A, ClusterSettings())
        self.members = {"b", "c"}
        self.contacts = dict.fromkeys(self.members, self.now)
        """When each member's last consent was requested, or since when it is trusted."""
        self.suspended = False
        self._update()

    def events(self) -> Iterable[str]:
        verbs = [f"{name} consents" for name in sorted(self.members)]
        verbs += [f"{name} consents late" for name in sorted(self.members)]
        verbs += ["d goes" if "d" in self.members else "d joins", "step", "half", "life"]
        return verbs

    def do(self, event: str) -> None:
        match event.split():
            case [name, "consents", *late]:
                sent = self.now - (LIFE / 2 if late else 0.0)
                self.machine.on_consent(OTHERS[name], sent, self.now)
                self.contacts[name] = max(sent, self.contacts[name])
            case ["d", "joins"]:
                until = self.machine.valid_until
                self.members.add("d")
                self.contacts["d"] = self.now if until == inf else until - LIFE
            case ["d", "goes"]:
                self.members.discard("d")
                del self.contacts["d"]
            case ["step"]:
                self._pass(LIFE / STEPS)
            case ["half"]:
                self._pass(LIFE / 2)
            case ["life"]:
                self._pass(LIFE)
        self._update()

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + LIFE / STEPS / 2)
            self._update()

    def _update(self) -> None:
        gossip = state(a=UP, **dict.fromkeys(sorted(self.members), UP))
        for effect in self.machine.update(gossip, self.now):
            match effect:
                case HandlingSuspended():
                    assert not self.suspended, "suspended twice"
                    self.suspended = True
                case HandlingResumed():
                    assert self.suspended, "resumed without a suspension"
                    self.suspended = False
            self.said.append(type(effect).__name__)
        assert bool(self.machine.reason) == self.suspended
        if self.now < self.machine.valid_until:
            near = [n for n, at in self.contacts.items() if self.now < at + LIFE]
            assert self._stays(len(near)), f"it goes on with {sorted(near)} of {self.members}"

    def _stays(self, near: int) -> bool:
        """True if the node and these others are a majority; a half with the lowest address is."""
        return 2 * (near + 1) >= len(self.members) + 1

    def key(self) -> Hashable:
        oldest = self.now - LIFE * 1.1
        ages = tuple(
            (name, round((self.now - max(at, oldest)) / LIFE * STEPS))
            for name, at in sorted(self.contacts.items())
        )
        left = self.machine.valid_until - self.now
        left = left if left in (inf, -inf) else round(left / LIFE * STEPS)
        return ages, left, self.suspended

    def rest(self) -> None:
        for name in sorted(self.members):
            self.machine.on_consent(OTHERS[name], self.now, self.now)
            self.contacts[name] = self.now
        self._pass(LIFE / STEPS * 2)
        assert not self.suspended, "suspended although every member consents"
        self._pass(2 * LIFE)
        assert self.suspended, "it goes on without any consent"

    def close(self) -> None: ...
