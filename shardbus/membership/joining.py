"""One node's attempt to join a cluster.

    CONTACTING ──acknowledged──> TRYING ──passed──> JOINING ──Welcome──> (member)
        ^  └──acknowledged by a build without trials──^ │
        └──────────turned away, no welcome──────────────┘ (from TRYING, too)

`TRANSITIONS` is the drawing as data.

- The node sends InitJoin to every seed, and repeats it until one acknowledges. It is tried by the
  first seed that does, and by a member beyond it (`trials`), and sends Join once it has passed.
- A seed that turns out to be this node itself, by another name, is taken for its own address
  (`join_contacts`).
- Only the first seed of the list may found a cluster, and only if no other seed is in one: every
  other seed has answered InitNack, or none has acknowledged within `seed_node_timeout`. Without
  this rule two islands could arise at a cold start. A member on its way out is still in a cluster,
  though it admits no node: it does not answer an InitJoin. It answers a Join with InitNack; since
  it has acknowledged before, that does not count as being in no cluster, and the joining node
  contacts the seeds again.
- A node that rejoins after it was downed has the members of its former view as seeds, and perhaps
  cannot reach them. It asks less and less often, every `ASK_REJOINING_MAX` seconds at last, and
  stops with a reason after the time that it was given. Silence lets it found nothing. It founds
  only if it is the `founder`, the first seed of its settings, and every contact has answered
  InitNack within `NACK_LASTS`, and then by the store's claim (`founding`).
- Both sides compare greetings: cluster name, ranges of protocol versions, which must meet, and
  settings that must be equal. A
  refusal names both values and ends the attempt, because waiting does not change it. It names at
  most `DIFFERENCES_NAMED` differences, and cuts long values, so that it fits the wire.
- Contacts that are discovered (`discovers`) have no first. All of them get InitJoin,
  `ASKED_MAX` at a time. The node may found once it has `required_contacts` nodes, itself included,
  and each of the others has answered InitNack, or has been silent for `founding_claim`; whether it
  does is decided by the store's claim (`founding`).
- With `claims` the store's claim also decides whether the first seed founds, or a node without
  seeds, once the rules above let it. Until then it goes on contacting its seeds, and the members
  that the store names (`on_members_named`).
- An answer counts only if it came from an address that this node has asked. Without this rule any
  process could end the attempt by a refusal, or make the first seed found a second cluster.
- A Join carries the cookie of the InitAck that it follows, and so does a Trial.
- A Join without an answer is repeated. After `retry_unsuccessful_join_after` the node contacts the
  seeds again.
- With `shutdown_after_unsuccessful_join` set, a node that is not a member by then stops with a
  reason.

Source: S1.6, S1.32, S1.33, S3.11, B.1-B.3, B.144.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import msgspec
from msgspec.structs import replace

from shardbus.backoff import doubling
from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership import messages as msg
from shardbus.membership.events import Effect, SendControl
from shardbus.membership.gossip import Gossip
from shardbus.membership.join_contacts import ASKED_MAX, JoinContacts
from shardbus.membership.member import Member
from shardbus.membership.trials import BrokenLink, Trials
from shardbus.transitions import following

ASK_AGAIN_AFTER = 0.5
"""Seconds between two InitJoins, or Joins, to the same node."""
ASK_REJOINING_MAX = 5.0
"""Seconds between two InitJoins of a node that rejoins, at most."""
TRY_AGAIN_MAX = 2.0
"""Seconds between two Trials to the same member, at most."""
NO_ANSWER = "no answer"
NO_MEMBER = "that node is in no cluster yet"
DIFFERENCES_NAMED, LINKS_NAMED = 5, 3
NAME_SHOWN, VALUE_SHOWN = 300, 160
"""Characters shown of a setting's name and of a value, so that a refusal fits into `TEXT_MAX`."""


STORE_IDENTITY = "store.identity"
"""The name under which greetings carry the identity of the store that a node uses."""


def disagreement(mine: msg.Greeting, theirs: msg.Greeting) -> str:
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


def _range(greeting: msg.Greeting) -> str:
    is_single = greeting.lowest == greeting.protocol
    return f"{greeting.protocol}" if is_single else f"{greeting.lowest} to {greeting.protocol}"


def _named(name: str, value: str, other: str) -> str:
    values = f"is {_shown(value)} on one side and {_shown(other)} on the other"
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
    TRYING = auto()
    JOINING = auto()


class JoinTrigger(Enum):
    """The triggers of a change of phase."""

    ACKNOWLEDGED = "acknowledged"
    """A seed has answered InitAck; it gets a Trial."""
    ACKNOWLEDGED_UNTRIED = "acknowledged by a build without trials"
    """A seed has answered InitAck, and has no trials; it gets the Join."""
    PASSED = "passed"
    """Messages and gossip go both ways; the seed gets the Join."""
    TURNED_AWAY = "turned away"
    """The seed that got the Trial or the Join has answered InitNack."""
    NO_WELCOME = "no welcome"
    """It has not answered within `retry_unsuccessful_join_after`."""


TRANSITIONS: dict[tuple[JoinPhase, JoinTrigger], JoinPhase] = {
    (JoinPhase.CONTACTING, JoinTrigger.ACKNOWLEDGED): JoinPhase.TRYING,
    (JoinPhase.CONTACTING, JoinTrigger.ACKNOWLEDGED_UNTRIED): JoinPhase.JOINING,
    (JoinPhase.TRYING, JoinTrigger.PASSED): JoinPhase.JOINING,
    (JoinPhase.TRYING, JoinTrigger.TURNED_AWAY): JoinPhase.CONTACTING,
    (JoinPhase.TRYING, JoinTrigger.NO_WELCOME): JoinPhase.CONTACTING,
    (JoinPhase.JOINING, JoinTrigger.TURNED_AWAY): JoinPhase.CONTACTING,
    (JoinPhase.JOINING, JoinTrigger.NO_WELCOME): JoinPhase.CONTACTING,
}


class JoinStep(Enum):
    """The cluster machine's action besides sending."""

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


class JoinProgress(msgspec.Struct, frozen=True):
    """The result of one step of joining."""

    send: tuple[Effect, ...] = ()
    step: JoinStep = JoinStep.NONE
    reason: str = ""
    gossip: Gossip | None = None
    suspect: NodeId | None = None
    """A member that must be probed first."""


class Joiner:
    """One node's attempt to join by seeds. `founds` False: it rejoins. `within`: the seconds after
    which it gives up rejoining; 0 is never. `founder`: the node that may found anew among nodes
    that rejoin; None is no node. `claims`: the store's claim decides whether it founds."""

    def __init__(
        self,
        me: Member,
        greeting: msg.Greeting,
        seeds: Sequence[Address],
        settings: ClusterSettings,
        *,
        founds: bool = True,
        within: float = 0.0,
        founder: Address | None = None,
        discovers: bool = False,
        claims: bool = False,
        tried: set[NodeId] | None = None,
    ) -> None:
        self.me = me
        self.trials = Trials(me, set() if tried is None else tried)
        self.greeting = greeting
        self.settings = settings
        self.contacts = JoinContacts(me.node.address, seeds)
        self._first_named = next(iter(seeds), None) if founds else founder
        self._may_be_first = settings.new_cluster and not discovers and (founds or claims)
        named_first = self._may_be_first and self._first_named == me.node.address
        self.first = founds and (named_first or not (seeds or discovers))
        self.rejoins, self.within = not founds, within
        self.refounds = named_first and self.rejoins
        """True if this node rejoins, and may found once no contact is in a cluster."""
        self.discovers, self.claims = discovers, claims
        self._is_due = False
        """True once only the store's claim keeps this node from founding."""
        self.phase = JoinPhase.CONTACTING
        self.target: NodeId | None = None
        self._target_at: Address | None = None
        self._cookie = 0
        self._joined: dict[NodeId, None] = {}
        self._beyond: dict[Address, None] = {}
        """Members beyond the target that got a request for a trial."""
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

    def end(self, members: Iterable[NodeId]) -> list[Effect]:
        """The node is a member, as these are: end the trials, and listen on to the members."""
        return self.trials.end(members)

    def deadline(self) -> float:
        """Return when `tick` is due."""
        return min([self._ask_at, *(at for at, _ in self._limits())])

    def tick(self, now: float) -> JoinProgress:
        """Perform due actions."""
        ended: list[Effect] = []
        for at, step in self._limits():
            if now < at:
                continue
            if step is JoinStep.FOUND_CLUSTER:
                step = self._found_cluster()
            if step is not JoinStep.NONE:
                return JoinProgress((), step, self._timeout_reason(now))
            if self.phase is not JoinPhase.CONTACTING:
                self._advance(JoinTrigger.NO_WELCOME)
                ended = self._contact(now)
        if now < self._ask_at:
            return JoinProgress()
        self._ask_at = now + self._pause(now)
        progress = self._ask(now)
        return replace(progress, send=(*ended, *progress.send))

    def _ask(self, now: float) -> JoinProgress:
        """Ask the seeds or members of this phase."""
        if self.phase is JoinPhase.JOINING and self.target is not None:
            join = msg.Join(self.greeting, self.me, self._cookie)
            return JoinProgress((SendControl(self.target, join),))
        if self.phase is JoinPhase.TRYING:
            return JoinProgress((*self.trials.ask(now), *self._ask_beyond(now)))
        contacts = self.contacts
        step = self._found_cluster() if self.first and not contacts.addresses else JoinStep.NONE
        turn = contacts.next_turn(now) if self.discovers else contacts.addresses
        asks = (SendControl(at, msg.InitJoin(self.greeting)) for at in (*turn, *contacts.named))
        return JoinProgress(tuple(asks), step)

    def on_contacts(self, contacts: Sequence[Address], now: float) -> JoinProgress:
        """Take over the contacts that a look-up has found. New ones are asked at once."""
        if self.contacts.replace(contacts) and self.phase is JoinPhase.CONTACTING:
            self._ask_at = now
        return self.tick(now)

    def on_members_named(self, members: Sequence[Address], now: float) -> JoinProgress:
        """Contact these members, too, which the store names. They keep no node from founding."""
        if self.contacts.replace_named(members) and self.phase is JoinPhase.CONTACTING:
            self._ask_at = now
            return self.tick(now)
        return JoinProgress()

    def is_lost(self, now: float) -> bool:
        """True if no seed has taken this node in for `seed_node_timeout`, or it may found."""
        if not self.claims or self.phase is not JoinPhase.CONTACTING:
            return False
        if self.rejoins:
            return self._refounds_now(now)
        return self._is_due or now >= self._phase_at + self.settings.seed_node_timeout

    def _found_cluster(self) -> JoinStep:
        """Found a cluster, or let the store's claim decide that."""
        if not self.claims:
            return JoinStep.FOUND_CLUSTER
        self._is_due = True
        return JoinStep.NONE

    def may_found(self, now: float) -> bool:
        """True if no contact is in the way of founding by the store's claim."""
        if self.rejoins and not self.discovers:
            return self._refounds_now(now)
        if self.claims:
            return self._is_due and self.phase is JoinPhase.CONTACTING
        contacts = self.contacts
        enough = len(contacts.addresses) + 1 >= self.settings.required_contacts
        if not (self.discovers and contacts.looked_up and enough):
            return False
        quiet = contacts.all_quiet(self.settings.founding_claim, now)
        return quiet and self.phase is JoinPhase.CONTACTING

    def _refounds_now(self, now: float) -> bool:
        """True if this node rejoins, and no member that it knew is in a cluster now."""
        contacting = self.phase is JoinPhase.CONTACTING
        return self.refounds and contacting and self.contacts.all_in_no_cluster(now)

    def has_asked(self, address: Address) -> bool:
        """True if this address belongs to a seed, to the target of the Join, or to another member
        that tries this node."""
        contacts = (*self.contacts.addresses, *self.contacts.named)
        return address in contacts or address == self._target_at or address in self._beyond

    def may_welcome(self, node: NodeId) -> bool:
        """True if this node has sent Join to that one."""
        return node in self._joined

    def on_ack(
        self, sender: NodeId, ack: msg.InitAck, now: float, at: Address | None = None
    ) -> JoinProgress:
        """Send Join to the seed if it is the first to acknowledge. `at`: the address asked, by
        default the sender's."""
        if why := disagreement(self.greeting, ack.greeting):
            return JoinProgress((), JoinStep.REFUSED, why)
        at = at or sender.address
        self.contacts.on_ack(at, sender)
        if self.phase is JoinPhase.JOINING:
            return JoinProgress()
        if ack.greeting.gossip is None:
            self.trials.add_old(at)
            if self.phase is JoinPhase.TRYING:
                return self._after_evidence(now)
            self._begin(JoinTrigger.ACKNOWLEDGED_UNTRIED, sender, at, now)
            self._cookie = ack.cookie
            return self.tick(now)
        if self.phase is JoinPhase.CONTACTING:
            self._begin(JoinTrigger.ACKNOWLEDGED, sender, at, now)
            self._ask_at = now + ASK_AGAIN_AFTER
        if sender == self.target:
            self._cookie = ack.cookie
        effects = self.trials.add(sender, at, ack.greeting.gossip, ack.cookie, now)
        return JoinProgress(tuple(effects))

    def _begin(self, trigger: JoinTrigger, target: NodeId, at: Address, now: float) -> None:
        """Join by this member from now on."""
        self._advance(trigger)
        self.target, self._target_at = target, at
        self._phase_at = self._ask_at = now
        self._rounds = 0
        if self.phase is JoinPhase.JOINING:
            self._joined[target] = None

    # -- trials ----------------------------------------------------------------------------------

    def on_result(self, sender: NodeId, result: msg.TrialResult, now: float) -> JoinProgress:
        """Take a member's findings about this node."""
        effects = self.trials.on_result(sender, result, now)
        if self.phase is not JoinPhase.TRYING:
            return JoinProgress()
        if sender == self.target:
            self._phase_at = now
            effects += self._ask_beyond(now)
        return self._after_evidence(now, effects)

    def on_published(
        self, sender: NodeId, message: msg.PublishedMessage, now: float
    ) -> JoinProgress | None:
        """Take gossip of a member that tries this node. Returns None if it is of no use."""
        if not isinstance(message, msg.HeartbeatReply):
            return None
        self.trials.on_reply(sender, now)
        return self._after_evidence(now)

    def on_listening(self, uid: int, now: float) -> JoinProgress:
        """A process receives this node's publications from now on."""
        return JoinProgress(tuple(self.trials.on_listening(uid, now)))

    def broken(self, now: float) -> tuple[BrokenLink, ...]:
        """Return the ways that do not work, or otherwise the reason for this node's wait."""
        since = self._began_at
        if self.phase is JoinPhase.TRYING:
            return tuple(self.trials.broken(now))
        if self.phase is JoinPhase.JOINING and self._target_at is not None:
            why = "has not answered the request to join"
            return (BrokenLink(self._target_at, "messages", why, None, self._phase_at),)
        nacked = self.contacts.in_no_cluster(now)
        return tuple(
            BrokenLink(at, "messages", NO_MEMBER if at in nacked else NO_ANSWER, None, since)
            for at in sorted(self.contacts.addresses, key=nacked.__contains__)
        )

    def _ask_beyond(self, now: float) -> list[Effect]:
        """Contact members that the target has named, to be tried by them, too."""
        addresses = self.trials.beyond(now)
        self._beyond.update(dict.fromkeys(addresses))
        return [SendControl(address, msg.InitJoin(self.greeting)) for address in addresses]

    def _after_evidence(self, now: float, effects: Sequence[Effect] = ()) -> JoinProgress:
        """Join if the node has passed."""
        if self.phase is not JoinPhase.TRYING or not self.trials.passed(now):
            return JoinProgress(tuple(effects))
        assert self.target is not None
        assert self._target_at is not None
        self._begin(JoinTrigger.PASSED, self.target, self._target_at, now)
        progress = self.tick(now)
        return JoinProgress((*effects, *progress.send), progress.step, progress.reason)

    # -- answers ---------------------------------------------------------------------------------

    def on_nack(self, sender: NodeId, now: float, at: Address | None = None) -> JoinProgress:
        """Record that the seed is not a member. If no other seed is one, the first seed founds the
        cluster. `at`: the address asked, by default the sender's."""
        at = at or sender.address
        if sender == self.me.node:
            return self._on_own_answer(at)
        ended: list[Effect] = []
        if self.phase is not JoinPhase.CONTACTING and sender == self.target:
            self._advance(JoinTrigger.TURNED_AWAY)
            ended = self._contact(now)
        self.contacts.on_nack(at, sender, now)
        return JoinProgress(tuple(ended), self._founds_now())

    def _founds_now(self) -> JoinStep:
        """Found the cluster if this is the first seed and no other is in one."""
        contacting = self.phase is JoinPhase.CONTACTING
        if self.first and contacting and self.contacts.all_nacked():
            return self._found_cluster()
        return JoinStep.NONE

    def _on_own_answer(self, at: Address) -> JoinProgress:
        """This seed is the node itself, by another name."""
        self.contacts.remove(at)
        named_first = self._may_be_first and at == self._first_named
        self.first = self.first or (named_first and not self.rejoins)
        self.refounds = self.refounds or (named_first and self.rejoins)
        return JoinProgress((), self._founds_now())

    def _advance(self, trigger: JoinTrigger) -> None:
        """Go to the phase that follows.

        Raises:
            LocalProtocolError: the table has no such transition. Nothing changed.
        """
        self.phase = following(TRANSITIONS, self.phase, trigger, "joining")

    def _pause(self, now: float) -> float:
        contacting = self.phase is JoinPhase.CONTACTING
        calm = self.rejoins and contacting and not self._refounds_now(now)
        if not calm and self.phase is not JoinPhase.TRYING:
            return ASK_AGAIN_AFTER
        self._rounds += 1
        limit = ASK_REJOINING_MAX if calm else TRY_AGAIN_MAX
        return doubling(ASK_AGAIN_AFTER, limit, self._rounds)

    def _contact(self, now: float) -> list[Effect]:
        """Begin anew with the seeds. Returns the effects that end the trials."""
        self.target, self._beyond = None, {}
        self.contacts.forget_nacks()
        self._phase_at = self._ask_at = now
        return self.trials.end()

    def _limits(self) -> list[tuple[float, JoinStep]]:
        limits = []
        if self.settings.shutdown_after_unsuccessful_join:
            at = self._began_at + self.settings.shutdown_after_unsuccessful_join
            limits.append((at, JoinStep.TIME_OUT))
        if self.within:
            limits.append((self._began_at + self.within, JoinStep.TIME_OUT))
        if self.phase is not JoinPhase.CONTACTING:
            at = self._phase_at + self.settings.retry_unsuccessful_join_after
            limits.append((at, JoinStep.NONE))
        elif self.first and not self._is_due:
            at = self._phase_at + self.settings.seed_node_timeout
            limits.append((at, JoinStep.FOUND_CLUSTER))
        return limits

    def _timeout_reason(self, now: float) -> str:
        tried = ", ".join(map(str, self.contacts.addresses[:ASKED_MAX])) or "none"
        who = "member that it knew has taken" if self.rejoins else "seed took"
        broken = self.broken(now)[:LINKS_NAMED] if self.phase is not JoinPhase.CONTACTING else ()
        links = "".join(f"; {link.describe()}" for link in broken)
        return f"no {who} this node in within {now - self._began_at:.0f} s; tried {tried}{links}"
