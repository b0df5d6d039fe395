"""Tells that are dropped behind the acknowledgement: senders hear how many there were, in bulk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus.entities.supervision import EntityCounts
from shardbus.errors import NodeLost
from shardbus.routing.pending_message import PendingMessage
from shardbus.transport.asks import CoarseClock
from shardbus.transport.drop_reports import (
    EVERY_TICKS,
    KEYS_MAX,
    LOG_EVERY_S,
    SENDERS_MAX,
    DropTallies,
    Origin,
    RefusedTells,
)
from shardbus.transport.session import Session
from shardbus.wire.batch import Control, Hello, Relayed, decode_hello, encode_body
from shardbus.wire.control import Refusals, decode_control
from tests.unit.transport.session_pair import Side, pair, quiet


class Host:
    """A node with links that tells come by."""

    def __init__(self) -> None:
        self.drops, self.sides = DropTallies(), list[Side]()

    def link(self, *, listens: bool = True) -> Side:
        here, there = pair()
        here.session.wants_drop_reports = listens
        self.sides += [here, there]
        return here

    async def reports(self, side: Side) -> list[Refusals]:
        """The messages that the other end of a link has received."""
        await quiet(*self.sides)
        assert side.peer is not None
        rows = side.peer.taker.got
        heard = [decode_control(Control(str(row[1]), "", bytes(row[2]))) for row in rows]  # type: ignore[call-overload]
        rows.clear()
        return [message for message in heard if isinstance(message, Refusals)]

    async def counts(self, side: Side) -> list[tuple[Any, ...]]:
        """The counts in it."""
        return [row for report in await self.reports(side) for row in report.counts]


async def test_each_session_gets_reports_of_its_own_tells_by_type_and_reason() -> None:
    host = Host()
    first, other, third = host.link(), host.link(), host.link()
    marks = [host.drops.mark(side.session) for side in (first, other, third)]
    assert len(set(marks)) == 3
    assert max(marks) < Origin.UNREPORTED
    for _ in range(500):
        host.drops.drop(marks[0], "a", "mailbox_full", 1)
    host.drops.drop(marks[0], "b", "mailbox_full", 2)
    host.drops.drop(marks[0], "a", "schema", 3)
    host.drops.drop(marks[1], "a", "schema", 4)
    host.drops.report(0)
    assert await host.counts(first) == [
        ("a", "mailbox_full", 500),
        ("b", "mailbox_full", 2),
        ("a", "schema", 3),
    ]
    assert await host.counts(other) == [("a", "schema", 4)]
    assert await host.counts(third) == []


async def test_the_first_drop_is_reported_at_once_and_then_one_report_a_second() -> None:
    host = Host()
    side = host.link()
    mark, heard = host.drops.mark(side.session), []
    for tick in range(3 * EVERY_TICKS):
        host.drops.drop(mark, "a", "schema", 1)
        host.drops.report(tick)
        heard.append(await host.counts(side))
    ticks = [tick for tick, rows in enumerate(heard) if rows]
    assert ticks == [0, EVERY_TICKS, 2 * EVERY_TICKS]
    assert sum(count for rows in heard for _, _, count in rows) == 2 * EVERY_TICKS + 1
    host.drops.report(3 * EVERY_TICKS - 1, last=True)
    assert await host.counts(side) == [("a", "schema", EVERY_TICKS - 1)]


async def test_a_peer_that_wants_no_reports_or_is_gone_gets_none() -> None:
    host = Host()
    old, gone = host.link(listens=False), host.link()
    marks = [host.drops.mark(old.session), host.drops.mark(gone.session)]
    assert marks[0] == Origin.UNREPORTED
    for mark in marks:
        host.drops.drop(mark, "a", "schema", 1)
    gone.session.close(NodeLost("x"))
    host.drops.report(0)
    host.drops.drop(marks[1], "a", "schema", 1)
    assert [await host.counts(old), await host.counts(gone)] == [[], []]
    assert host.drops._tallies == {}
    assert host.drops.mark(gone.session) == Origin.UNREPORTED


def test_only_drops_with_a_mark_are_reported_and_all_are_counted() -> None:
    counts, reports = EntityCounts(), list[tuple[int, str, int]]()
    counts.report_drop = lambda *row: reports.append(row)
    for via in (17, 0, -1, Origin.UNREPORTED, Origin.UNREPORTED - 1):
        counts.drop("schema", via=via)
    counts.drop("schema", 5)
    assert counts.dropped == {"schema": 10}
    assert reports == [(Origin.UNREPORTED - 1, "schema", 1)]


async def test_the_mark_goes_with_a_message_that_is_passed_on() -> None:
    """A message that had to wait here has it again when it comes by the loopback; and a message on
    a link names its receiver."""
    remote, got = Side("a"), list[Relayed]()

    class Taker:
        def on_relayed(self, session: object, message: Relayed) -> None:
            got.append(message)

    taker: Any = Taker()
    loopback = Session("self", asyncio.get_running_loop(), CoarseClock(), taker, None)
    for session in (remote.session, loopback):
        envelope = PendingMessage(("counter", "add"), "17", "x", b"", 1, via=-7)
        envelope.send(session.outbox, CoarseClock())
        session.outbox.flush()
    [[relayed]] = remote.batches
    assert isinstance(relayed, Relayed)
    assert (relayed.corr, relayed.via) == (0, -7)
    assert [(message.corr, message.via) for message in got] == [(0, -7)]


# Tells that another node has forwarded


async def test_a_report_of_a_forwarded_tell_reaches_its_sender() -> None:
    """A client sends to `first`, which forwards to `second`; that drops one of two tells."""
    first, second, refused = Host(), Host(), RefusedTells()
    client, link = first.link(), second.link()
    via = first.drops.mark(client.session)
    mark = second.drops.mark_forwarded(link.session, via)
    assert mark == second.drops.mark_forwarded(link.session, via)
    assert mark != link.session.mark
    second.drops.drop(mark, "a", "dropped_in_move", 2)
    second.drops.drop(link.session.mark, "a", "dropped_in_move", 1)
    second.drops.report(0)
    [report] = await second.reports(link)
    assert report == Refusals((("a", "dropped_in_move", 3),), (("a", "dropped_in_move", 2, via),))
    refused.record("second", report, first.drops.relay)
    assert refused.counts == {("a", "dropped_in_move"): 1}
    first.drops.report(0)
    assert await first.counts(client) == [("a", "dropped_in_move", 2)]


async def test_the_forwarding_node_counts_drops_of_tells_whose_sender_is_gone() -> None:
    host, refused = Host(), RefusedTells()
    gone = host.link()
    via = host.drops.mark(gone.session)
    gone.session.close(NodeLost("x"))
    report = Refusals((("a", "schema", 3),), (("a", "schema", 2, via), ("a", "schema", 1, -99)))
    refused.record("n2", report, host.drops.relay)
    assert refused.counts == {("a", "schema"): 3}


async def test_senders_behind_a_session_are_bounded_and_end_with_it() -> None:
    host = Host()
    link = host.link()
    for via in range(-3, -3 - 2 * SENDERS_MAX, -1):
        mark = host.drops.mark_forwarded(link.session, via)
        host.drops.drop(mark, "a", "schema", 1)
    assert len(host.drops._origins) == SENDERS_MAX
    assert host.drops.mark_forwarded(link.session, 0) == link.session.mark
    link.session.close(NodeLost("x"))
    host.drops.report(0)
    assert (host.drops._tallies, host.drops._origins) == ({}, {})


@pytest.mark.parametrize("leaving", ["prompt", "somebody_leaves"])
async def test_while_a_member_leaves_it_and_the_others_report_at_every_tick(leaving: str) -> None:
    host = Host()
    side = host.link()
    mark = host.drops.mark(side.session)
    setattr(host.drops, leaving, True)
    for tick in range(3):
        host.drops.drop(mark, "a", "schema", 1)
        host.drops.report(tick)
    assert await host.counts(side) == 3 * [("a", "schema", 1)]


async def test_what_a_sender_that_ends_was_not_told_is_counted_where_it_was_forwarded() -> None:
    untold: list[Refusals] = []
    host = Host()
    host.drops = DropTallies(untold.append)
    side = host.link()
    mark = host.drops.mark(side.session)
    assert host.drops.relay(mark, "a", "buffer_full", 2)
    host.drops.drop(mark, "a", "schema", 1)
    side.session.close(NodeLost("x"))
    host.drops.report(0)
    host.drops.report(1)
    assert untold == [Refusals((("a", "buffer_full", 2),))]


# The sender


def test_a_sender_counts_and_says_it_once_in_a_while() -> None:
    refused = RefusedTells()
    assert refused.log_line(0.0) == ""
    refused.record("n1", Refusals((("line", "schema", 2), ("line", "mailbox_full", 1))))
    line = refused.log_line(1.0)
    assert "n1 dropped 2 of 'line': schema" in line
    assert "n1 dropped 1 of 'line': mailbox_full" in line
    refused.record("n1", Refusals((("line", "schema", 3),)))
    refused.record("n2", Refusals((("line", "schema", 4),)))
    assert refused.log_line(0.9 + LOG_EVERY_S) == ""
    line = refused.log_line(1.0 + LOG_EVERY_S)
    assert "n1 dropped 3" in line
    assert "n2 dropped 4" in line
    assert refused.log_line(1.0 + 2 * LOG_EVERY_S) == ""
    assert refused.counts == {("line", "schema"): 9, ("line", "mailbox_full"): 1}


def test_a_host_that_invents_types_fills_no_memory() -> None:
    refused = RefusedTells()
    for number in range(3 * KEYS_MAX):
        refused.record("n1", Refusals(((str(number), "schema", 1),)))
    assert len(refused.counts) == KEYS_MAX + 1
    assert sum(refused.counts.values()) == 3 * KEYS_MAX
    assert refused.log_line(0.0).count("dropped") == KEYS_MAX


# The wire


def test_an_older_peer_does_not_listen_and_a_newer_one_is_understood_by_it() -> None:
    new = Hello("shop", "client#1", None, 1, listens=True)
    assert decode_hello(encode_body(new)) == new
    assert not decode_hello(encode_body(["shop", "client#1", None, 1])).listens
    assert (
        decode_hello(encode_body(["shop", "client#1", None, 1, True, b"", [1, 1], [], "more"]))
        == new
    )


async def test_types_that_a_sender_invents_are_counted_in_bulk() -> None:
    host = Host()
    link = host.link()
    mark = host.drops.mark(link.session)
    for number in range(3 * KEYS_MAX):
        host.drops.drop(mark, f"type-{number}", "unknown_type", 1)
    host.drops.report(0)
    reports = await host.counts(link)
    assert len(reports) == KEYS_MAX + 1
    assert sum(row[2] for row in reports) == 3 * KEYS_MAX


def test_reports_make_no_labels_out_of_foreign_text() -> None:
    refused = RefusedTells({"page"})
    rows = (("page", "mailbox_full", 1), ("x" * 200, "mailbox_full", 2), ("page", "No\nword", 4))
    refused.record("n2", Refusals(rows))
    assert refused.counts == {
        ("page", "mailbox_full"): 1,
        ("", "mailbox_full"): 2,
        ("page", "other"): 4,
    }
