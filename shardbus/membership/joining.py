"""One node's attempt to join a cluster.

    CONTACTING ──acknowledged──> JOINING ──Welcome──> (member)
        ^                           │
        └─turned away, no welcome───┘

`TRANSITIONS` is the drawing as data.

- The node sends InitJoin to every seed, and repeats it until one acknowledges. It sends Join to the
  first seed that does.
- A node that rejoins after it was downed founds no cluster: its seeds are members that it knew, and
  perhaps cannot reach. It asks less and less often, every `ASK_REJOINING_MAX` seconds at last, and
  stops with a reason after the time that it was given. Of other nodes,
  only the first seed of the list may found one, and only if no other seed is in one: every
  other seed has answered InitNack, or none has acknowledged within `seed_node_timeout`. Without
  this rule two islands could arise at a cold start. A member on its way out is still in a cluster,
  though it admits no node: it does not answer an InitJoin. It answers a Join with InitNack; since
  it has acknowledged before, that does not count as being in no cluster, and the joining node
  contacts the seeds again.
- Both sides compare greetings: cluster name, ranges of protocol versions, which must meet, and
  settings that must be equal. A
  refusal names both values and ends the attempt, because waiting does not change it. It names at
  most `DIFFERENCES_NAMED` differences, and cuts long values, so that it fits the wire.
- Contacts that are discovered (`discovers`) have no first. All of them get InitJoin,
  `ASKED_MAX` at a time. The node may found once it knows `required_contacts` nodes, itself
  included, and each of the others has answered InitNack, or has been silent for `founding_claim`;
  whether it does is decided by the store's claim (`founding`).
- With `claims` the store's claim also decides whether the first seed founds, or a node without
  seeds, once the rules above let it. Until then it goes on contacting its seeds, and the members
  that the store names (`on_members_named`).
- An answer counts only if it came from an address that this node has asked. Without this rule any
  process could end the attempt by a refusal, or make the first seed found a second cluster.
- A Join carries the cookie of the InitAck that it follows.
- A Join without an answer is repeated. After `retry_unsuccessful_join_after` the node contacts the
  seeds again.
- With `shutdown_after_unsuccessful_join` set, a node that is not a member by then stops with a
  reason.

Source: S1.6, S1.32, S1.33, S3.11, B.1-B.3, B.144.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from shardbus.backoff import doubling
from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership.events import SendControl
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member
from shardbus.membership.messages import Greeting, InitAck, InitJoin, Join
from shardbus.transitions import following

ASK_AGAIN_AFTER = 0.5
"""Seconds between two InitJoins, or Joins, to the same node."""
ASK_REJOINING_MAX = 5.0
"""Seconds between two InitJoins of a node that rejoins, at most."""
ASKED_MAX = 20
"""Contacts that get InitJoin at a time."""
DIFFERENCES_NAMED = 5
NAME_SHOWN, VALUE_SHOWN = 300, 160
"""Characters shown of a setting's name and of a value, so that a refusal fits into `TEXT_MAX`."""


STORE_IDENTITY = "store.identity"
"""The name under which greetings carry the identity of the store that a node uses."""


def disagreement(mine: Greeting, theirs: Greeting) -> str:
    """Return why the two sides cannot be in one cluster, with both values. Empty if they can."""
    if mine.cluster != theirs.cluster:
        return f"cluster name {_shown(theirs.cluster)} is not {_shown(mine.cluster)}"
    if min(mine.protocol, theirs.protocol) < max(mine.lowest, theirs.lowest):
        return f"membership protocol {_range(theirs)} is not {_range(mine)}: see docs/upgrading.md"
    different = [
        (name, theirs.settings[name], value)
        for name, value in sorted(mine.settings.items())
        if theirs.settings.get(name, value) != value
    ]
    named = [_named(*difference) for difference in different[:DIFFERENCES_NAMED]]
    if len(different) > len(named):
        named.append(f"and {len(different) - len(named)} more")
    return "; ".join(named)


def _range(greeting: Greeting) -> str:
    one = greeting.lowest == greeting.protocol
    return f"{greeting.protocol}" if one else f"{greeting.lowest} to {greeting.protocol}"


def _named(name: str, one: str, other: str) -> str:
    values = f"is {_shown(one)} on one side and {_shown(other)} on the other"
    if name == STORE_IDENTITY:
        return f"the identity of the store {values}: set store.url to one store for all nodes"
    return f"setting {_cut(name, NAME_SHOWN)} {values}"


def _shown(value: str) -> str:
    return _cut(repr(value), VALUE_SHOWN)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


class JoinPhase(Enum):
    """The phase of the attempt."""

    CONTACTING = auto()
    JOINING = auto()


class JoinTrigger(Enum):
    """What changes the phase."""

    ACKNOWLEDGED = "acknowledged"
    """A seed has answered InitAck; it gets the Join."""
    TURNED_AWAY = "turned away"
    """The seed that got the Join has answered InitNack."""
    NO_WELCOME = "no welcome"
    """It has not answered within `retry_unsuccessful_join_after`."""


TRANSITIONS: dict[tuple[JoinPhase, JoinTrigger], JoinPhase] = {
    (JoinPhase.CONTACTING, JoinTrigger.ACKNOWLEDGED): JoinPhase.JOINING,
    (JoinPhase.JOINING, JoinTrigger.TURNED_AWAY): JoinPhase.CONTACTING,
    (JoinPhase.JOINING, JoinTrigger.NO_WELCOME): JoinPhase.CONTACTING,
}


class JoinStep(Enum):
    """What the cluster machine must do besides sending."""

    NONE = auto()
    FOUND_CLUSTER = auto()
    ENTER = auto()
    """Become a member; the progress's gossip is the state."""
    ADMIT = auto()
    """Another node became a member; the progress's gossip is the new state."""
    REFUSED = auto()
    """Stop: the cluster refuses this node, for the progress's reason."""
    TIME_OUT = auto()
    """Stop: no seed has admitted this node within `shutdown_after_unsuccessful_join`, or within the
    time for rejoining."""
    DROP = auto()
    """Drop the message, for the progress's reason."""


@dataclass(frozen=True, slots=True)
class JoinProgress:
    """The result of one step of joining."""

    send: tuple[SendControl, ...] = ()
    step: JoinStep = JoinStep.NONE
    reason: str = ""
    gossip: Gossip | None = None
    suspect: NodeId | None = None
    """A member that must be probed first."""


class Joiner:
    """One node's attempt to join by seeds. `founds` False: it rejoins, and founds no cluster.
    `within`: the seconds after which it gives up rejoining; 0 is never. `claims`: the store's claim
    decides whether it founds."""

    def __init__(
        self,
        me: Member,
        greeting: Greeting,
        seeds: Sequence[Address],
        settings: ClusterSettings,
        *,
        founds: bool = True,
        within: float = 0.0,
        discovers: bool = False,
        claims: bool = False,
    ) -> None:
        self.me = me
        self.greeting = greeting
        self.settings = settings
        self.others = [seed for seed in dict.fromkeys(seeds) if seed != me.node.address]
        named_first = bool(seeds) and seeds[0] == me.node.address
        may_be_first = not seeds or (settings.new_cluster and named_first)
        self.first = founds and may_be_first and not discovers
        self.rejoins, self.within = not founds, within
        self.discovers, self.claims = discovers, claims
        self._named: list[Address] = []
        """Members that the store names."""
        self._is_due = False
        """True once only the store's claim keeps this node from founding."""
        self._looked = False
        """True once contacts have been looked up."""
        self._asked_since: dict[Address, float] = {}
        self._turn = 0
        self.phase = JoinPhase.CONTACTING
        self.target: NodeId | None = None
        self._target_at: Address | None = None
        self.nacked: dict[Address, None] = {}
        self.acked: dict[Address, NodeId] = {}
        self._cookie = 0
        self._joined: dict[NodeId, None] = {}
        self._began_at = 0.0
        self._phase_at = 0.0
        self._ask_at = 0.0
        self._rounds = 0
        """InitJoins sent in a row to each seed."""

    def start(self, now: float) -> JoinProgress:
        """Contact the seeds."""
        self._began_at = now
        self._contact(now)
        return self.tick(now)

    def deadline(self) -> float:
        """Return when `tick` is due."""
        return min([self._ask_at, *(at for at, _ in self._limits())])

    def tick(self, now: float) -> JoinProgress:
        """Do what is due."""
        for at, step in self._limits():
            if now < at:
                continue
            if step is JoinStep.FOUND_CLUSTER:
                step = self._found().step
            if step is not JoinStep.NONE:
                return JoinProgress((), step, self._timeout_reason(now))
            if self.phase is JoinPhase.JOINING:
                self._advance(JoinTrigger.NO_WELCOME)
                self._contact(now)
        if now < self._ask_at:
            return JoinProgress()
        self._ask_at = now + self._pause()
        if self.phase is JoinPhase.JOINING and self.target is not None:
            join = Join(self.greeting, self.me, self._cookie)
            return JoinProgress((SendControl(self.target, join),))
        step = self._found().step if self.first and not self.others else JoinStep.NONE
        turn = [*self._next_turn(now), *self._named]
        asks = tuple(SendControl(seed, InitJoin(self.greeting)) for seed in turn)
        return JoinProgress(asks, step)

    def _next_turn(self, now: float) -> list[Address]:
        """The contacts to ask now."""
        everyone = self.others
        if not self.discovers:
            return everyone
        start = self._turn % len(everyone) if len(everyone) > ASKED_MAX else 0
        turn = (everyone[start:] + everyone[:start])[:ASKED_MAX]
        self._turn = start + len(turn)
        for contact in turn:
            self._asked_since.setdefault(contact, now)
        return turn

    def on_contacts(self, contacts: Sequence[Address], now: float) -> JoinProgress:
        """Take over what a look-up of the contacts has found. New ones are asked at once."""
        before, self._looked = self.others, True
        self.others = [one for one in dict.fromkeys(contacts) if one != self.me.node.address]
        gone = self._asked_since.keys() - set(self.others)
        for contact in gone:
            del self._asked_since[contact]
        if self.phase is JoinPhase.CONTACTING and not set(self.others) <= set(before):
            self._ask_at = now
        return self.tick(now)

    def on_members_named(self, members: Sequence[Address], now: float) -> JoinProgress:
        """Contact these members, too, which the store names. They keep no node from founding."""
        before, mine = self._named, (self.me.node.address, *self.others)
        self._named = [one for one in members if one not in mine][:ASKED_MAX]
        if self.phase is JoinPhase.CONTACTING and not set(self._named) <= set(before):
            self._ask_at = now
            return self.tick(now)
        return JoinProgress()

    def is_lost(self, now: float) -> bool:
        """True if no seed has taken this node in for `seed_node_timeout`, or it may found."""
        if not self.claims or self.rejoins or self.phase is JoinPhase.JOINING:
            return False
        return self._is_due or now >= self._phase_at + self.settings.seed_node_timeout

    def _found(self) -> JoinProgress:
        """Found a cluster, or let the store's claim decide that."""
        if not self.claims:
            return JoinProgress((), JoinStep.FOUND_CLUSTER)
        self._is_due = True
        return JoinProgress()

    def may_found(self, now: float) -> bool:
        """True if no contact is in the way of founding by the store's claim."""
        if self.claims:
            return self._is_due and self.phase is JoinPhase.CONTACTING
        enough = len(self.others) + 1 >= self.settings.required_contacts
        if not (self.discovers and self._looked and enough) or self.phase is JoinPhase.JOINING:
            return False
        silence = self.settings.founding_claim
        return all(
            one in self.nacked or now - self._asked_since.get(one, now) >= silence
            for one in self.others
        )

    def has_asked(self, address: Address) -> bool:
        """True if this address is that of a seed, or of the one that gets the Join."""
        return address in (*self.others, *self._named) or address == self._target_at

    def may_welcome(self, node: NodeId) -> bool:
        """True if this node has sent Join to that one."""
        return node in self._joined

    def on_ack(
        self, sender: NodeId, ack: InitAck, now: float, at: Address | None = None
    ) -> JoinProgress:
        """Send Join to the seed if it is the first to acknowledge. `at`: the address asked, by
        default the sender's."""
        if why := disagreement(self.greeting, ack.greeting):
            return JoinProgress((), JoinStep.REFUSED, why)
        self.acked[at or sender.address] = sender
        if self.phase is JoinPhase.JOINING:
            return JoinProgress()
        self._advance(JoinTrigger.ACKNOWLEDGED)
        self.target, self._cookie = sender, ack.cookie
        self._target_at = at or sender.address
        self._joined[sender] = None
        self._phase_at = self._ask_at = now
        self._rounds = 0
        return self.tick(now)

    def on_nack(self, sender: NodeId, now: float, at: Address | None = None) -> JoinProgress:
        """Record that the seed is not a member. If no other seed is one, the first seed founds the
        cluster. `at`: the address asked, by default the sender's."""
        if self.phase is JoinPhase.JOINING and sender == self.target:
            self._advance(JoinTrigger.TURNED_AWAY)
            self._contact(now)
        at = at or sender.address
        if self.acked.get(at) != sender:
            self.nacked[at] = None
            self._asked_since.pop(at, None)
        everyone = all(seed in self.nacked for seed in self.others)
        if self.first and self.phase is JoinPhase.CONTACTING and everyone:
            return self._found()
        return JoinProgress()

    def _advance(self, trigger: JoinTrigger) -> None:
        """Go to the phase that follows.

        Raises:
            LocalProtocolError: the table has no such transition. Nothing changed.
        """
        self.phase = following(TRANSITIONS, self.phase, trigger, "joining")

    def _pause(self) -> float:
        if not self.rejoins or self.phase is not JoinPhase.CONTACTING:
            return ASK_AGAIN_AFTER
        self._rounds += 1
        return doubling(ASK_AGAIN_AFTER, ASK_REJOINING_MAX, self._rounds)

    def _contact(self, now: float) -> None:
        self.target, self.nacked = None, {}
        self._phase_at = self._ask_at = now

    def _limits(self) -> list[tuple[float, JoinStep]]:
        limits = []
        if self.settings.shutdown_after_unsuccessful_join:
            at = self._began_at + self.settings.shutdown_after_unsuccessful_join
            limits.append((at, JoinStep.TIME_OUT))
        if self.within:
            limits.append((self._began_at + self.within, JoinStep.TIME_OUT))
        if self.phase is JoinPhase.JOINING:
            at = self._phase_at + self.settings.retry_unsuccessful_join_after
            limits.append((at, JoinStep.NONE))
        elif self.first and not self._is_due:
            at = self._phase_at + self.settings.seed_node_timeout
            limits.append((at, JoinStep.FOUND_CLUSTER))
        return limits

    def _timeout_reason(self, now: float) -> str:
        tried = ", ".join(map(str, self.others[:ASKED_MAX])) or "none"
        if self.rejoins:
            return (
                f"no member that it knew has taken this node in within {now - self._began_at:.0f} s"
                f"; tried {tried}"
            )
        return f"no seed took this node in within {now - self._began_at:.0f} s; tried {tried}"
