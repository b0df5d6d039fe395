"""Warnings before it hurts: a healthy cluster has none, and each sign has its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shardbus.admin import warning_signs as signs
from shardbus.admin.diagnosis import CLOCK_S, Picture, findings
from shardbus.admin.warning_signs import HOT_MESSAGES, MAILBOX, MAILBOXES, warning_signs
from shardbus.entities.failures import ON_START
from shardbus.node.file_descriptors import SCARCE
from tests.unit.admin.test_diagnosis import A, B, C, member, of_type, update
from tests.unit.admin.test_diagnosis import healthy as sound

KIND, OTHER = "page", "cart"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def hot(messages: float, *entities: tuple[str, str, float]) -> dict[str, Any]:
    """The messages of a type on a node, all for these entities (shard, id, part)."""
    shards: dict[str, float] = {}
    for shard, _, part in entities:
        shards[shard] = shards.get(shard, 0.0) + part
    return {
        "messages": messages,
        "shards": [[shard, part] for shard, part in shards.items()],
        "entities": [list(row) for row in entities],
    }


def healthy() -> Picture:
    """Three members that are moderately busy, with types `page` and `cart`. Each node has one
    shard of `page` with a few entities; entity `p` gets a good part of the messages of its type."""
    picture = sound()
    for index, shard in enumerate(("0", "1", "2")):
        row = member(picture, index)
        update(
            row,
            vitals={"busy": 0.3, "lag": 0.05},
            descriptors=[60, 1024],
            protocol=[9, 9],
            features=["vitals"],
            store_clock=0.0,
            saves=[40, 0.1],
        )
        boxes = {"waiting": 20, "fullest": [["p", shard, 20]], "limit": 10_000, "paused": 0}
        spots = hot(1000.0, (shard, "p", 0.3), (shard, "q", 0.1))
        update(of_type(picture, index), mailboxes=boxes, hot=spots)
        cart = copy.deepcopy(of_type(picture, index))
        update(cart, shards={}, hot=hot(10.0, (shard, "c", 1.0)))
        update(row["types"], **{OTHER: cart})
    picture.checkup["time"]["answered"] = NOW.timestamp()
    picture.slow = {"handlers": [slow_report(B, 120.0)], "silent": []}
    return picture


def slow_report(node: str, ago: float) -> dict[str, Any]:
    at = datetime.fromtimestamp(NOW.timestamp() - ago, UTC).isoformat(timespec="milliseconds")
    return {"at": at, "node": node, "type": KIND, "how": "waited", "text": "page 'p' put"}


def test_a_healthy_cluster_is_silent() -> None:
    assert warning_signs(healthy()) == []


def test_nothing_at_all_is_no_reason_to_fail() -> None:
    assert warning_signs(Picture()) == []


def test_members_of_another_build_are_no_reason_to_fail() -> None:
    assert warning_signs(sound()) == []
    strange = sound()
    update(member(strange, 0), vitals=None, descriptors=None, saves=None, features=None)
    update(of_type(strange, 0), mailboxes=None, hot=None)
    strange.slow = {"handlers": [{"at": "?", "node": A, "type": KIND}]}
    assert warning_signs(strange) == []


Sign = Callable[[Picture], object]


def vitals(picture: Picture, index: int, **changes: float) -> None:
    update(member(picture, index)["vitals"], **changes)


def boxes(picture: Picture, index: int, **changes: Any) -> None:
    update(of_type(picture, index)["mailboxes"], **changes)


def hot_shard(p: Picture) -> None:
    """Shard 1 gets 80 % of all messages, for many entities."""
    update(of_type(p, 1), hot=hot(12_000.0, ("1", "p", 0.2), ("1", "q", 0.15), ("1", "r", 0.65)))
    of_type(p, 1)["hot"]["entities"].pop()
    vitals(p, 1, busy=0.9)


def hot_entity(p: Picture) -> None:
    hot_shard(p)
    update(of_type(p, 1), hot=hot(12_000.0, ("1", "p", 0.9), ("1", "q", 0.1)))


def hot_and_slow(p: Picture) -> None:
    """The node has time, but the entity handles less than it gets."""
    hot_entity(p)
    vitals(p, 1, busy=0.1)
    boxes(p, 1, fullest=[["p", "1", 500]])


def hot_and_late(p: Picture) -> None:
    hot_entity(p)
    vitals(p, 1, busy=0.1, lag=0.8)


def few_shards(p: Picture) -> None:
    """One of two shards has more than nine tenths."""
    for index in (0, 2):
        update(of_type(p, index), shards={}, hot=hot(0.0))
    update(of_type(p, 1), shards={"0": 1, "1": 2}, hot=hot(900.0, ("1", "p", 1.0)))
    vitals(p, 1, busy=1.0)


def outboxes(p: Picture, *ages: float) -> None:
    row = {"pending": 3, "type": KIND, "id": "p", "open": False, "producer": "client#1"}
    rows = [{**row, "name": f"outbox-{at}", "age": age} for at, age in enumerate(ages)]
    p.outboxes = {"outboxes": rows, "more": False, "silent": []}


def poison(p: Picture, index: int, *ages: float) -> None:
    rows = [[age, "p", f"m{at}", "client#1"] for at, age in enumerate(ages)]
    update(of_type(p, index), poison=rows)


SIGNS: list[tuple[Sign, list[tuple[str, str, str]]]] = [
    (hot_shard, [("hot-shard", KIND, "1")]),
    (hot_entity, [("hot-entity", KIND, "p")]),
    (hot_and_slow, [("hot-entity", KIND, "p")]),
    (hot_and_late, [("lagging", "members", B), ("hot-entity", KIND, "p")]),
    (few_shards, [("hot-entity", KIND, "p")]),
    (lambda p: vitals(p, 1, lag=0.6), [("lagging", "members", B)]),
    (lambda p: update(member(p, 1), descriptors=[820, 1024]), [("descriptors", "members", B)]),
    (lambda p: update(member(p, 2), saves=[5, 1.5]), [("saves-waiting", "store", C)]),
    (
        lambda p: update(member(p, 2), reminders={KIND: [3, 31.0], "punctual": [3, 29.0]}),
        [("reminders-late", KIND, C)],
    ),
    (
        lambda p: update(member(p, 2), queues={KIND: [2, 9, 3, 0, 0]}),
        [("queue-aside", KIND, C)],
    ),
    (
        lambda p: update(member(p, 2), projections={KIND: [2, 5.0], "fine": [0, 59.0]}),
        [("projection-stopped", KIND, C)],
    ),
    (
        lambda p: update(
            member(p, 2), mailboxes_stuck={KIND: [2, "a", 61.0], "fine": [1, "b", 59.0]}
        ),
        [("mailbox-stuck", KIND, C)],
    ),
    (
        lambda p: update(member(p, 2), projections={KIND: [0, 61.0]}),
        [("projection-behind", KIND, C)],
    ),
    (
        lambda p: outboxes(p, 61.0, 60.0),
        [("outbox-stuck", "cluster", "outbox-0")],
    ),
    (lambda p: poison(p, 0, 599.0), [("poison", KIND, "p")]),
    (lambda p: update(member(p, 0), store_clock=3600.0), [("store-clock", "store", A)]),
    (lambda p: update(member(p, 0), store_clock=-3.0), [("store-clock", "store", A)]),
    (lambda p: update(member(p, 1), protocol=[9, 10]), [("protocol", "members", B)]),
    (lambda p: update(member(p, 1), features=[]), [("protocol", "members", B)]),
    (
        lambda p: update(member(p, 1), features=["vitals", "more"]),
        [("protocol", "members", A), ("protocol", "members", C)],
    ),
    (lambda p: boxes(p, 1, fullest=[["p", "1", MAILBOX]]), [("backlog", KIND, "p")]),
    (lambda p: boxes(p, 1, fullest=[["p", "1", 8]], limit=16), [("backlog", KIND, "p")]),
    (lambda p: boxes(p, 1, paused=2), [("backlog", KIND, B)]),
    (lambda p: boxes(p, 1, waiting=MAILBOXES), [("backlog", KIND, B)]),
    (
        lambda p: boxes(p, 1, waiting=MAILBOXES, paused=1, fullest=[["p", "1", MAILBOX]]),
        [("backlog", KIND, "p")],
    ),
    (
        lambda p: update(p.slow, handlers=[slow_report(B, 50.0), slow_report(B, 55.0)]),
        [("slow-handler", KIND, B)],
    ),
]


@pytest.mark.parametrize(("sign", "expected"), SIGNS)
def test_each_sign_has_its_own_warning(sign: Sign, expected: list[tuple[str, str, str]]) -> None:
    picture = healthy()
    sign(picture)
    assert [finding.key for finding in warning_signs(picture)] == expected


def calm(p: Picture) -> None:
    hot_entity(p)
    vitals(p, 1, busy=0.4)


def seldom(p: Picture) -> None:
    hot_entity(p)
    for index in range(3):
        update(of_type(p, index)["hot"], messages=HOT_MESSAGES / 10)


def trifle(p: Picture) -> None:
    """The node is busy with another type."""
    hot_entity(p)
    update(member(p, 1)["types"][OTHER], hot=hot(100_000.0))
    update(of_type(p, 0)["mailboxes"], fullest=[])


def spread(p: Picture) -> None:
    """Four shards share equally; three nodes are busy."""
    for index in range(3):
        vitals(p, index, busy=1.0)


def now_late(p: Picture) -> None:
    vitals(p, 1, lag=0.6)
    update(member(p, 1), lag=2.0)


QUIET = [
    calm,
    seldom,
    trifle,
    spread,
    now_late,
    lambda p: outboxes(p, 60.0),
    lambda p: poison(p, 0, 600.0),
    lambda p: update(member(p, 1), descriptors=[819, 1024]),
    lambda p: update(member(p, 1), descriptors=[5000, 0]),
    lambda p: update(member(p, 1), saves=[90_000, 0.9]),
    lambda p: update(member(p, 1), store_clock=CLOCK_S),
    lambda p: update(member(p, 1), store_clock=None),
    lambda p: boxes(p, 1, fullest=[["p", "1", MAILBOX - 1]]),
    lambda p: boxes(p, 1, waiting=MAILBOXES - 1),
    lambda p: update(p.slow, handlers=[slow_report(B, 61.0)]),
]


@pytest.mark.parametrize("harmless", QUIET)
def test_what_does_no_harm_is_no_sign(harmless: Sign) -> None:
    picture = healthy()
    harmless(picture)
    assert warning_signs(picture) == []


def test_a_warning_says_what_and_where() -> None:
    picture = healthy()
    hot_entity(picture)
    [sign] = warning_signs(picture)
    assert sign.what == f"of shard 1 gets 86% of the messages on {B}, which is 90% busy"
    picture = healthy()
    update(member(picture, 0), store_clock=3600.0)
    [sign] = warning_signs(picture)
    assert sign.what == "has a clock that is 3600 s behind it"


def test_an_outbox_is_named_with_its_receiver_and_its_producer() -> None:
    picture = healthy()
    outboxes(picture, 3600.0)
    [sign] = warning_signs(picture)
    assert sign.what == (
        "has 3 messages, the first for 3600 s, to page 'p'; which no process has open"
    )
    picture.outboxes["outboxes"][0]["open"] = True
    [sign] = warning_signs(picture)
    assert sign.what.endswith("; open in client#1")


def test_the_outboxes_that_wait_longest_are_named() -> None:
    picture = healthy()
    outboxes(picture, *(1000.0 - n for n in range(50)))
    subjects = [sign.subject for sign in warning_signs(picture)]
    assert subjects == [f"outbox-{n}" for n in range(signs.OUTBOXES_NAMED)]


def test_the_last_poison_of_an_entity_is_named() -> None:
    picture = healthy()
    poison(picture, 0, 90.0, 20.0)
    poison(picture, 1, 50.0)
    [sign] = warning_signs(picture)
    what = f"has skipped a delivery to m1 on {A}, from client#1: its handler failed each time"
    assert sign.what == what


def test_signs_and_faults_do_not_repeat_each_other() -> None:
    picture = healthy()
    for sign, _ in SIGNS:
        if sign is not few_shards:
            sign(picture)
    assert {f.check for f in findings(picture)} <= {"late"}


def test_the_doctor_warns_where_the_log_of_a_node_does() -> None:
    assert signs.DESCRIPTORS == SCARCE


def dropped(reason: str, count: int = 3) -> Sign:
    return lambda p: update(member(p, 1), dropped=[[KIND, reason, count]])


def failing(p: Picture, age: float) -> None:
    last = [[age + 60.0, "o-1", "KeyError", "", ""], [age, "o-2", "ValueError", "no", "stack"]]
    update(of_type(p, 1), failing=[{"method": "pay", "count": 12, "last": last}])


def not_started(p: Picture, age: float) -> None:
    last = [[age, "o-2", "ValueError", "no", "stack"]]
    failed = {"method": ON_START, "count": 3, "last": last}
    update(of_type(p, 1), failing=[failed], failed_starts={"o-2": [age, 3, "ValueError: no"]})


@pytest.mark.parametrize(
    ("sign", "expected", "what"),
    [
        (dropped("expired"), ("dropped", KIND, "expired"), "is why 3 messages got no handler"),
        (
            lambda p: failing(p, 59.0),
            ("failing-handler", KIND, "pay"),
            f"has 12 failures, the last one ValueError: no (of 'o-2' on {B})",
        ),
        (
            lambda p: not_started(p, 59.0),
            ("failing-start", KIND, "o-2"),
            f"has not started on {B}, tried 3 times: ValueError: no",
        ),
    ],
)
def test_what_has_failed_lately_is_named(
    sign: Sign, expected: tuple[str, str, str], what: str
) -> None:
    picture = healthy()
    sign(picture)
    [finding] = warning_signs(picture)
    assert finding.key == expected
    assert finding.what.startswith(what)


@pytest.mark.parametrize(
    "sign",
    [
        dropped("rejected"),
        dropped("failed"),
        dropped("start_failed"),
        lambda p: failing(p, 60.0),
        lambda p: not_started(p, 60.0),
    ],
)
def test_an_answer_no_and_what_is_long_over_are_no_signs(sign: Sign) -> None:
    picture = healthy()
    sign(picture)
    assert warning_signs(picture) == []
