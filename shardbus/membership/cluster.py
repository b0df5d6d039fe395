"""The membership machine of one node. It composes the others:

    admission   joining, and admitting others           joining, admission
    trials      whether a node can take part            trials
    claim       who founds, by the store's claim        founding, claim_record
    exchange    the state, and its spreading            gossip, exchange, gossip_targets
    heartbeats  members that do not answer              failure/heartbeat, failure/phi_accrual
    deaths      processes that are proved gone          failure/confirmed_death
    resolver    the decision about a split              downing/
    leader      the members' life cycle                 leader
    others      clusters of this one's name             other_clusters
    suspension  whether entities may handle messages    suspension

Events enter by `handle`, time by `tick`. Both return effects. After either, `_settle` repeats until
the state no longer changes: stop if this node is out, act as leader, decide a split. Then it
reports the new view, and pushes the new version.

A push goes at once to a few nodes, and at most once per pause, so that a burst of changes does not
multiply. Each node that receives a new version also reports it to the leader, which thereby notices
convergence without waiting for rounds.

A node that finds itself Down or removed, or Exiting in a version that all have seen, sends that
state to a few others, emits Stopped, and does nothing more.

Source: S1.1-S1.64, B.14, B.15; docs/architecture.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import assert_never

from shardbus.config.settings import ClusterSettings
from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership import messages as msg
from shardbus.membership.admission import Admission, sharing_address
from shardbus.membership.claim_record import named
from shardbus.membership.commands import Command, apply_command, downed
from shardbus.membership.diagnostics import Overview, diagnose
from shardbus.membership.downing.resolver import Resolver
from shardbus.membership.downing.split import EPOCHS, first_epoch
from shardbus.membership.downing.split_lease import DowningPlan
from shardbus.membership.exchange import GossipExchange
from shardbus.membership.failure.confirmed_death import DeathWatch, ProbeOutcome
from shardbus.membership.failure.heartbeat import Heartbeats
from shardbus.membership.founding import FOUNDING, FoundingClaim
from shardbus.membership.gossip import Gossip, broken_rules
from shardbus.membership.joining import JoinProgress, JoinStep
from shardbus.membership.leader import Leadership, enough_members, leader_of
from shardbus.membership.member import VITALS, Member, Status
from shardbus.membership.other_clusters import OtherClusters
from shardbus.membership.reachability import Flag
from shardbus.membership.suspension import Suspension
from shardbus.membership.view import (
    DowningDecided,
    MembershipView,
    SelfStarved,
    changes,
    view_of,
)

OUT = (Status.DOWN, Status.REMOVED)
FAREWELL_FANOUT = 5
"""The number of nodes to which a stopping node sends its last state."""


class ClusterMembership:
    """The membership of one node. `fingerprint` holds the settings that must be equal on every
    node, `secret` the key of the cookies that joining nodes must return."""

    def __init__(
        self,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        rng: random.Random,
        secret: bytes = b"",
    ) -> None:
        self.me = me.node
        self.settings = settings
        self.stopped = ""
        self.view = MembershipView(me.node)
        place = me.gossip_address
        greeting = msg.Greeting(
            cluster, msg.PROTOCOL, dict(fingerprint), msg.OLDEST_PROTOCOL, place
        )
        self.tried: set[NodeId] = set()
        """Nodes that are no members, and to whose gossip this node listens."""
        self._admission = Admission(me, greeting, settings, secret, self.tried)
        self._claim = FoundingClaim(me.node, settings)
        self._exchange = GossipExchange(me.node, settings, rng)
        self._others = OtherClusters(me.node, greeting)
        detector = settings.failure_detector
        self._heartbeats = Heartbeats(me.node, detector, settings.prompt_within)
        self._deaths = DeathWatch()
        least, by_role = settings.min_members, settings.role_min_members
        has_started = partial(enough_members, min_members=least, role_min_members=by_role)
        self._suspension = Suspension(me.node, settings)
        self._resolver = Resolver(
            me.node,
            settings.downing,
            has_started=has_started,
            suspended_within=settings.suspended_within,
            noticed_within=self._heartbeats.notices_within,
            without_contact=self._suspension.without_contact,
            monitored_by=detector.monitored_by,
        )
        self._confirmed_until = self._suspension.valid_until
        self._leadership = Leadership(me.node, settings)
        self._viewed: Gossip = self._exchange.gossip
        self._out: list[ev.Effect] = []

    @property
    def gossip(self) -> Gossip:
        """This node's copy of the state."""
        return self._exchange.gossip

    # -- the machine: handle, tick, deadline, check ----------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """Handle one event."""
        if self.stopped:
            return []
        before = self.gossip
        self._dispatch(event, now)
        if isinstance(event, ev.PubSubReceived) and self.gossip is before:
            self._update_suspension(now)
            return self._collect_effects()
        return self._settle(now)

    def tick(self, now: float) -> list[ev.Effect]:
        """Perform due actions."""
        if self.stopped:
            return []
        if self._admission.joining:
            self._apply_progress(self._admission.tick(now), self.me, now)
        self._ask_for_claim(now)
        if self._is_member():
            self._send_heartbeats(now)
            self._ask_for_consent(now)
            self._probe_suspects(now)
            self._out += self._exchange.tick(now)
            self._out += self._others.tick(self.gossip, now)
            self._out += self._admission.examinations.tick(self.gossip, now)
        return self._settle(now)

    def deadline(self) -> float | None:
        """Return when `tick` must be called next."""
        if self.stopped:
            return None
        times = [
            self._admission.deadline(),
            self._leadership.deadline(),
            self._exchange.deadline(),
            self._heartbeats.deadline(),
            self._deaths.deadline(),
            self._resolver.deadline(),
            self._suspension.deadline(),
            self._claim.deadline() if self._is_member() else None,
            self._others.deadline() if self._is_member() else None,
            self._admission.examinations.deadline() if self._is_member() else None,
        ]
        return min((t for t in times if t is not None), default=None)

    def check(self) -> None:
        """Audit the whole state. For tests.

        Raises:
            LocalProtocolError: an invariant does not hold.
        """
        watched = [*self._heartbeats.watches, *self._deaths.suspects]
        broken = broken_rules(self.gossip, self.me, watched)
        shown = view_of(self.gossip, self.me) if self._is_member() else MembershipView(self.me)
        if not self.stopped and self.view != shown:
            broken.append("the view is that of the state")
        if broken:
            raise LocalProtocolError(f"{self.me}: broken: {', '.join(broken)}")

    def has_claim(self, now: float) -> bool:
        """True if the store's claim is this node's cluster's, as far as this node can tell."""
        return self._claim.valid(now)

    def overview(self, now: float) -> Overview:
        """Return this node's view of the others' versions. For diagnostics."""
        return diagnose(
            self.gossip,
            self.me,
            self._exchange.last_versions,
            self._heartbeats.phis(now),
            self._heartbeats.vitals_known(now),
            self._admission.broken(now),
        )

    # -- events ----------------------------------------------------------------------------------

    def _dispatch(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.JoinSelf():
                self._join(ev.JoinSeeds(()), now)
            case ev.JoinSeeds():
                self._join(event, now)
            case ev.ContactsFound(contacts):
                self._exchange.seeds = contacts
                self._apply_progress(self._admission.on_contacts(contacts, now), self.me, now)
                self._ask_for_claim(now)
            case ev.PubSubReceived():
                self._on_published(event, now)
            case ev.WatchSeeds(seeds):
                self._others.watch(seeds, now)
            case ev.SuspectNodes(nodes):
                self._others.suspect(nodes, self.gossip, now)
            case ev.ControlReceived():
                self._on_control(event, now)
            case ev.PeerListening(uid):
                self._out += self._exchange.on_listening(uid, now)
                self._apply_progress(self._admission.on_listening(uid, now), self.me, now)
            case ev.PeerDisconnected(node):
                if self.settings.confirmed_death and node in self.gossip.members:
                    self._suspect_death(node, now)
            case ev.ProbeResult(node, outcome):
                self._on_probed(node, outcome, now)
            case (
                ev.Leave()
                | ev.Down()
                | ev.Remove()
                | ev.Quarantine()
                | ev.SetService()
                | ev.PrepareForShutdown()
                | ev.YieldSeniority()
                | ev.RecordEpochs()
                | ev.SetMeta()
            ):
                self._apply_command(event, now)
            case ev.SetVitals(vitals):
                self._heartbeats.vitals = vitals
            case ev.SetRing(voters):
                self._leadership.ring = voters
            case ev.LeaseResult(name, granted, counter) if name == FOUNDING:
                self._on_claim(granted, counter, now)
            case ev.ClaimRead():
                self._on_claim_read(event, now)
            case ev.CheckClaim():
                self._claim.hurry(now)
                self._ask_for_claim(now)
            case ev.LeaseResult(name, granted):
                self._carry_out(self._resolver.on_lease_result(name, granted), now)
            case _:
                assert_never(event)

    def _apply_command(self, command: Command, now: float) -> None:
        if isinstance(command, ev.Leave) and command.node == self.me:
            mine = self.gossip.members.get(self.me)
            if mine is None or mine.status is Status.READY_FOR_SHUTDOWN:
                self._stop(ev.LEFT, now)
                return
        after, refusal = apply_command(self.gossip, self.me, command, now)
        if refusal:
            self._out.append(ev.CommandRefused(refusal))
        self._change(after, now)

    def _on_probed(self, node: NodeId, outcome: ProbeOutcome, now: float) -> None:
        self._deaths.on_result(node, outcome, now)
        self._resolver.on_probe(node, outcome)
        if outcome.proves_death and node != self.me and node in self.gossip.members:
            self._set(self.gossip.with_flag(self.me, node, Flag.TERMINATED))
        self._out += self._admission.examinations.on_probe(self.gossip, node, outcome, now)
        self._apply_progress(self._admission.on_probe(self.gossip, node, outcome, now), node, now)

    def _on_published(self, event: ev.PubSubReceived, now: float) -> None:
        sender, message = event.sender, event.message
        if not self._is_member():
            self._apply_progress(self._admission.on_published(sender, message, now), sender, now)
            return
        if isinstance(message, msg.Heartbeat):
            refused = self._resolver.refuses(sender, now)
            consent = self._suspension.consents(self.gossip, sender, refused, now)
            asks = self.gossip.members.get(sender)
            knows = asks is not None and VITALS in asks.features
            reply = self._heartbeats.answer(message, now, consent=consent, vitals=knows)
            self._out.append(ev.Publish(sender, reply))
            self._out += self._admission.examinations.on_heard(self.gossip, sender, now)
        if self._exchange.is_out(sender):
            self._out.append(self._exchange.state_to(sender, now))
            return
        if sender not in self.gossip.members:
            if not isinstance(message, msg.Heartbeat):
                self._out.append(ev.MessageDropped(sender, "from no member"))
            return
        if not isinstance(message, msg.Heartbeat | msg.HeartbeatReply):
            self._heartbeats.on_sign_of_life(sender, now)
        match message:
            case msg.Heartbeat():
                self._out += map(ev.Notice, self._heartbeats.on_beat(sender, message))
            case msg.HeartbeatReply():
                self._deaths.on_alive(sender, message.sent_at)
                if message.consent:
                    self._suspension.on_consent(sender, message.sent_at, now)
                self._out += map(ev.Notice, self._heartbeats.on_reply(sender, message, now))
            case msg.GossipStatus():
                self._out += self._exchange.on_status(sender, message, now)
            case msg.GossipSeen(clock):
                self._out += self._exchange.on_seen(sender, clock, now)
            case msg.GossipState():
                self._out += self._exchange.on_state(sender, message, event.waited, now)
            case _:
                assert_never(message)

    # -- joining ---------------------------------------------------------------------------------

    def _on_control(self, event: ev.ControlReceived, now: float) -> None:
        asks = isinstance(event.message, msg.InitJoin | msg.Join)
        if asks and self._claim.is_founder(self.gossip) and not self._claim.valid(now):
            self._out.append(ev.MessageDropped(event.sender, "unsure of its claim"))
            return
        message, at = event.message, event.at
        watched = self._is_member() and self._others.asks(at)
        if watched and isinstance(message, msg.InitAck | msg.InitNack | msg.JoinRefused):
            self._out += self._others.on_answer(self.gossip, event.sender, message, at)
            return
        progress = self._admission.on_message(
            self.gossip, event.sender, event.message, now, event.request_address
        )
        self._apply_progress(progress, event.sender, now)
        self._ask_for_claim(now)

    def _ask_for_claim(self, now: float) -> None:
        """Request the store's claim, to found by it, or to renew it. Look for members in its record
        if the seeds do not answer."""
        asks = self._is_member() or self._may_found(now)
        if asks and (ask := self._claim.ask(self.gossip, now)):
            self._out.append(ask)
        elif not asks and self._admission.is_lost(now) and (read := self._claim.read(now)):
            self._out.append(read)

    def _may_found(self, now: float) -> bool:
        """True if this node joins, and founds a cluster if the store's claim is its own."""
        admission = self._admission
        return admission.may_found(now) and self._claim.permits(admission.in_no_cluster(now), now)

    def _on_claim(self, granted: bool | None, counter: int, now: float) -> None:
        claim = self._claim
        claim.on_result(granted, counter, now)
        founds = not self._is_member() and claim.founds(now) and self._may_found(now)
        if founds:
            self._apply_progress(JoinProgress(step=JoinStep.FOUND_CLUSTER), self.me, now)
        if granted and self._is_member():
            self._out.append(claim.write(self.gossip))
            if end := claim.report_end():
                self._out.append(ev.Notice(end))
        elif granted is False and (read := claim.read(now)):
            self._out.append(read)

    def _on_claim_read(self, read: ev.ClaimRead, now: float) -> None:
        """Act on the record of the cluster that has the store's claim."""
        claim, record = self._claim, read.record
        if not self._is_member():
            elsewhere = self._admission.in_no_cluster(now)
            answer = claim.on_record(record, elsewhere, now, answered=read.answered)
            if not self._admission.joining:
                return
            if answer.refusal:
                progress = JoinProgress(step=JoinStep.REFUSED, reason=answer.refusal)
            else:
                progress = self._admission.on_members_named(answer.contacts, now)
            self._out += [answer.free] if answer.free else []
            if report := claim.report_wait(now):
                self._out.append(ev.Notice(report))
            self._apply_progress(progress, self.me, now)
        elif claim.lost:
            addresses = claim.rivals(record, self.gossip)
            rival = claim.report_rival(addresses, now)
            if claim.is_founder(self.gossip):
                reason = "join failed: another node has founded the cluster meanwhile"
                self._stop(f"{reason}: {named(addresses)}", now)
            elif rival:
                self._out.append(ev.Notice(rival))

    def _join(self, how: ev.JoinSeeds, now: float) -> None:
        if self._is_member() or self._admission.joining:
            self._out.append(ev.CommandRefused("this node has joined already"))
            return
        self._exchange.seeds = how.seeds
        if how.discovers or how.claims:
            self._claim.start(
                how.seeds,
                discovers=how.discovers,
                joins_any=how.joins_any,
                rejoins=not how.founds,
            )
        progress = self._admission.start(
            how.seeds,
            now,
            founds=how.founds,
            within=how.within,
            founder=how.founder,
            discovers=how.discovers,
            claims=how.claims and not how.discovers,
        )
        self._apply_progress(progress, self.me, now)
        self._ask_for_claim(now)

    def _apply_progress(self, progress: JoinProgress, sender: NodeId, now: float) -> None:
        self._out += progress.send
        if progress.suspect:
            self._suspect_death(progress.suspect, now)
        match progress.step:
            case JoinStep.NONE:
                pass
            case JoinStep.FOUND_CLUSTER:
                founded = Gossip().with_members(self.me, self._admission.me)
                if self._claim.on:
                    founded = founded.with_epoch(self.me, FOUNDING, self._claim.own_number)
                self._enter(founded.with_epoch(self.me, EPOCHS, first_epoch(self.me)), now)
            case JoinStep.ENTER:
                self._enter(progress.gossip or self.gossip, now)
            case JoinStep.ADMIT:
                self._set(progress.gossip or self.gossip)
            case JoinStep.REFUSED:
                self._out.append(ev.CommandRefused(progress.reason))
                self._stop(f"join failed: {progress.reason}", now)
            case JoinStep.TIME_OUT:
                self._stop(f"join failed: {progress.reason}", now)
            case JoinStep.DROP:
                self._out.append(ev.MessageDropped(sender, progress.reason))
            case _:
                assert_never(progress.step)

    def _enter(self, gossip: Gossip, now: float) -> None:
        self._exchange.start(gossip, now)
        self._heartbeats.start(now)
        self._leadership.start(now)
        self._claim.on_entered()
        self._out += self._admission.on_entered(gossip)

    # -- after every event -----------------------------------------------------------------------

    def _settle(self, now: float) -> list[ev.Effect]:
        """Apply the consequences of the event until there are none; then report the view and push
        the version."""
        while self._is_member() and not self.stopped and self._advance(now):
            pass
        if not self.stopped:
            self._update_suspension(now)
        self._update_view(now)
        if not self.stopped:
            self._out += self._exchange.announce(self.view.leader, now)
        return self._collect_effects()

    def _update_suspension(self, now: float) -> None:
        """Judge the contacts, before the application gets a new view."""
        if self._is_member():
            self._out += map(ev.Notice, self._suspension.update(self.gossip, now))
        self._publish_confirmation()

    def _publish_confirmation(self) -> None:
        until = self._suspension.valid_until
        if until != self._confirmed_until:
            self._confirmed_until = until
            self._out.append(ev.HandlingConfirmed(until))

    def _collect_effects(self) -> list[ev.Effect]:
        effects, self._out = self._out, []
        return effects

    def _advance(self, now: float) -> bool:
        """Apply one pass of consequences. True if another pass may find more."""
        before = self.gossip
        self._stop_if_out(now)
        if self.stopped:
            return False
        self._act_as_leader(now)
        self._distrust_old_gossip(self._heartbeats.late(now), now)
        self._carry_out(self._resolver.consider(self.gossip, self._leads(), now), now)
        return self.gossip is not before

    def _distrust_old_gossip(self, starved: float, now: float) -> None:
        if starved:
            self._resolver.on_starved(now + self._heartbeats.notices_within)

    def _stop_if_out(self, now: float) -> None:
        mine = self.gossip.members.get(self.me)
        if mine is None or mine.status is Status.DOWN:
            drained = self.view.status in (Status.LEAVING, Status.EXITING)
            kept_down = self.me in self.gossip.kept_down
            self._stop(ev.LEFT if drained else ev.KEPT_DOWN if kept_down else ev.DOWNED, now)
        elif mine.status is Status.EXITING and self.gossip.converged():
            self._stop(ev.LEFT, now)

    def _act_as_leader(self, now: float) -> None:
        after = self._leadership.act(self.gossip, now)
        if self._claim.on and self._leads() and FOUNDING not in after.epochs:
            after = after.with_epoch(self.me, FOUNDING, self._claim.own_number)
        self._change(after, now)

    def _leads(self) -> bool:
        return leader_of(self.gossip, self.me) == self.me

    def _carry_out(self, plan: DowningPlan, now: float) -> None:
        self._out += [ev.Probe(node) for node in plan.probe]
        if plan.ask:
            self._out.append(plan.ask)
        after = self.gossip
        if plan.decision:
            self._out.append(ev.Notice(DowningDecided(plan.decision)))
            after = downed(after, self.me, plan.decision.down)
        if plan.epoch:
            after = after.with_epoch(self.me, EPOCHS, plan.epoch)
        self._change(after, now)

    def _change(self, after: Gossip, now: float) -> None:
        """Replace the state, and send it to the members that are out by it."""
        if after is self.gossip:
            return
        before, out = self.gossip.members, []
        for node, member in before.items():
            status = after.members[node].status if node in after.members else Status.REMOVED
            if node != self.me and status in OUT and status is not member.status:
                out.append(node)
        self._set(after)
        self._out += [self._exchange.state_to(node, now) for node in out]

    def _send_heartbeats(self, now: float) -> None:
        beats, verdicts, starved = self._heartbeats.tick(now)
        self._out += [ev.Publish(node, beat) for node, beat in beats]
        if starved:
            self._distrust_old_gossip(starved, now)
            self._out.append(ev.Notice(SelfStarved(starved)))
        for verdict in verdicts:
            flag = Flag.REACHABLE if verdict.available else Flag.UNREACHABLE
            flagged = self.gossip.with_flag(self.me, verdict.node, flag)
            if flagged is self.gossip and not verdict.available:
                flagged = flagged.renewed(self.me)  # it is accused already, and now it is silent
            self._set(flagged)

    def _ask_for_consent(self, now: float) -> None:
        """Send heartbeats to members that no heartbeat asks often enough."""
        nodes = self._suspension.requests(self.gossip.members, self._heartbeats.watches, now)
        if nodes:
            beat = self._heartbeats.beat(now)
            self._out += [ev.Publish(node, beat) for node in nodes]

    def _suspect_death(self, node: NodeId, now: float) -> None:
        self._deaths.suspect(node, now)
        self._probe_suspects(now)

    def _probe_suspects(self, now: float) -> None:
        self._out += [ev.Probe(node) for node in self._deaths.tick(now)]

    def _update_view(self, now: float) -> None:
        """Compare the last view with the state. Report the changes, and watch the new set of
        members."""
        if self.gossip is self._viewed:
            return
        self._viewed = self.gossip
        before, self.view = self.view, view_of(self.gossip, self.me)
        if before == self.view:
            return
        old = {m.node for m in before.members}
        new = {m.node: m for m in self.view.members}
        self._out += [ev.Unsubscribe(m.node) for m in before.members if m.node not in new]
        fresh = {n: m for n, m in new.items() if n not in old and n != self.me}
        self._out += [ev.Subscribe(m) for n, m in fresh.items() if n not in self.tried]
        self.tried.difference_update(new)
        others = [n for n in new if n != self.me]
        self._heartbeats.on_members(others, self.view.unreachable)
        if old != new.keys():
            self._claim.on_members(self.gossip, now)
        self._deaths.keep(others)
        for node in sharing_address(self.view.members, other_than=self.me):
            self._suspect_death(node, now)
        self._out += [ev.Notice(change) for change in changes(before, self.view)]
        self._out.append(ev.ViewChanged(self.view))

    def _stop(self, reason: str, now: float) -> None:
        if self._is_member():
            self._out += self._exchange.announce_departure(FAREWELL_FANOUT, now)
        if reason != ev.LEFT:
            self._suspension.close()
        self._publish_confirmation()
        self._update_view(now)
        self.stopped = reason
        self._out.append(ev.Stopped(reason))

    def _is_member(self) -> bool:
        return self._leadership.deadline() is not None

    def _set(self, gossip: Gossip) -> None:
        self._exchange.gossip = gossip
