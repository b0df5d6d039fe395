"""An outbox whose cluster fails it, without a cluster: a journal in memory, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shardbus.client.outbox import ABSENT_S, STEP_S, TTL_S, WAITING_MAX, ClientOutbox
from shardbus.deliveries.numbers import AnswerCode, DeliveryAnswer
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    ConfigError,
    DeliveryFailed,
    EntityFailed,
    MessageTooLarge,
    NodeLost,
    RequestError,
    SchemaError,
    ShardBusError,
    UnknownEntityType,
)
from shardbus.store.outboxes import OutboxMessage, encode_message
from tests.virtual_time import virtual

MESSAGES = 3


class Receiver:
    """The sender to a type, and its entities: they confirm their messages, once `confirms`."""

    def __init__(self) -> None:
        self.confirms = True
        self.errors: list[Exception] = []
        """The errors of the next messages."""
        self.ids: list[str] = []

    def key(self, method: str) -> tuple[str, str]:
        return "page", method

    def ask_for(self, waiter: Any, key: Any, entity_id: str, *rest: Any) -> None:
        if self.errors:
            asyncio.get_running_loop().call_soon(waiter.set_exception, self.errors.pop())
            return
        self.ids.append(entity_id)
        if self.confirms:
            asyncio.get_running_loop().call_soon(
                waiter.set_result, DeliveryAnswer(AnswerCode.APPLIED)
            )


def row_of(entity_type: str, entity_id: str) -> Any:
    """Return a message as it is appended."""
    message = OutboxMessage(entity_type, entity_id, "add", b"\x90")
    return encode_message(message), message, asyncio.get_running_loop().create_future()


class Journal:
    """Answers the steps of an outbox that a former process has left three messages in. `errors`:
    those of the first questions for the sender of a type."""

    def __init__(self, *errors: Exception) -> None:
        self.receiver, self.errors = Receiver(), list(errors)
        self.entries = [
            encode_message(OutboxMessage("page", f"e{n}", "add", b"\x90")) for n in range(MESSAGES)
        ]
        self.trimmed = 0
        self.absent: set[str] = set()
        """Types without a member."""
        self.renewed_at = 0.0
        self.opens: Callable[[], Any] = lambda: 1
        self.refused: list[str] = []
        """The refusal of each append, if there is one."""

    def outbox(self) -> ClientOutbox:
        sender_of: Any = self.sender_of
        return ClientOutbox("orders", "p1", self.ask, sender_of)

    async def ask(self, kind: str, step: str, name: str, owner: str, *arguments: Any) -> Any:
        number, _, entries, _, _ = arguments
        match step:
            case "open":
                return self.opens()
            case "read":
                return [self.trimmed + 1, self.entries, self.trimmed + len(self.entries)]
            case "append" if self.refused:
                return {"refused": self.refused}
            case "append":
                return number + len(entries)
            case "renew":
                self.renewed_at = asyncio.get_running_loop().time()
                return True
            case "trim":
                self.trimmed = number
        return None

    async def sender_of(self, name: str) -> Receiver:
        if name in self.absent:
            raise UnknownEntityType("none")
        if self.errors:
            raise self.errors.pop(0)
        return self.receiver


# ---- reasons to give a stored message up


@pytest.mark.parametrize(
    "error",
    [
        AskTimeout("no answer"),
        NodeLost("gone"),
        BufferFull("full"),
        EntityFailed("StoreUnavailable", "no answer"),
        RequestError("unknown"),
    ],
    ids=repr,
)
@virtual
async def test_an_error_that_may_pass_is_tried_again(error: ShardBusError) -> None:
    journal = Journal(error, error, error)
    async with journal.outbox() as outbox:
        pass
    assert not outbox.failed
    assert journal.receiver.ids == ["e0", "e1", "e2"]
    assert journal.trimmed == MESSAGES


@virtual
async def test_messages_for_a_type_that_no_member_has_wait_in_order_and_others_pass() -> None:
    journal = Journal()
    journal.entries.insert(1, encode_message(OutboxMessage("other", "x", "add", b"\x90")))
    journal.absent = {"page"}
    async with journal.outbox() as outbox:
        await outbox._append_rows([row_of("page", "e3"), row_of("other", "y")])
        await asyncio.sleep(600)
        assert journal.receiver.ids == ["x", "y"]
        assert (outbox.unconfirmed, dict(outbox.failed), journal.trimmed) == (4, {}, 0)
        journal.absent.clear()
        await asyncio.sleep(ABSENT_S)
        assert journal.receiver.ids == ["x", "y", "e0", "e1", "e2", "e3"]
        assert outbox.unconfirmed == 0
    assert not outbox.failed
    assert journal.trimmed == 6


@virtual
async def test_a_type_that_goes_while_its_messages_are_under_way_loses_none() -> None:
    journal = Journal()
    journal.receiver.errors = [UnknownEntityType("none")] * 7
    async with journal.outbox() as outbox:
        await asyncio.sleep(60)
    assert not outbox.failed
    assert journal.trimmed == MESSAGES


@virtual
async def test_messages_for_types_that_no_member_has_are_bounded() -> None:
    journal = Journal()
    message = encode_message(OutboxMessage("page", "e", "add", b"\x90"))
    journal.entries = [message] * (WAITING_MAX + 5)
    journal.absent = {"page"}
    outbox = journal.outbox()
    opening = asyncio.ensure_future(outbox.__aenter__())
    await asyncio.sleep(60)
    assert not opening.done()
    assert len(outbox._absent["page"]) == WAITING_MAX
    journal.absent.clear()
    await opening
    await outbox.close()
    assert journal.trimmed == WAITING_MAX + 5


@virtual
async def test_a_type_that_comes_back_with_another_refusal_gives_its_messages_up() -> None:
    journal = Journal(UnknownEntityType("none"), SchemaError("no"))
    async with journal.outbox() as outbox:
        await asyncio.sleep(60)
    assert outbox.failed == {"refused": MESSAGES}
    assert journal.receiver.ids == []


@pytest.mark.parametrize("error", [SchemaError("no"), MessageTooLarge("big")], ids=repr)
@virtual
async def test_a_refusal_gives_that_message_up(error: ShardBusError) -> None:
    journal = Journal(error)
    async with journal.outbox() as outbox:
        pass
    assert outbox.failed == {"refused": 1}
    assert journal.receiver.ids == ["e1", "e2"]


@pytest.mark.parametrize(
    "errors", [[AskTimeout("no answer")] * 1000, [ConfigError("its own shards")]], ids=repr
)
@virtual
async def test_an_opening_fails_and_leaves_the_messages_in_the_store(
    errors: list[Exception],
) -> None:
    journal = Journal(*errors)
    loop = asyncio.get_running_loop()
    outbox = journal.outbox()
    with pytest.raises(type(errors[0])):
        await outbox.__aenter__()
    assert loop.time() <= STEP_S
    await asyncio.sleep(TTL_S)
    assert (journal.trimmed, dict(outbox.failed), journal.receiver.ids) == (0, {}, [])
    assert not outbox._tasks


# ---- an end that is cancelled


@virtual
async def test_a_cancelled_close_renews_no_lease() -> None:
    journal = Journal()
    journal.receiver.confirms = False
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3), journal.outbox() as outbox:
            pass
    assert outbox.unconfirmed == MESSAGES
    await asyncio.sleep(2 * TTL_S)
    assert journal.renewed_at <= loop.time() - 2 * TTL_S
    assert not outbox._tasks


# ---- an opening whose answer was lost


@virtual
async def test_an_opening_that_meets_a_later_opener_waits_for_its_turn() -> None:
    """That may be an own copy of the step, which the node handles late."""
    journal = Journal()
    answers: list[Any] = [{"refused": [kind, "", ""]} for kind in ("StaleFence", "JournalConflict")]
    journal.opens = lambda: answers.pop(0) if answers else 7
    async with journal.outbox() as outbox:
        assert outbox._fence == 7
    assert journal.trimmed == MESSAGES


# ---- a store that has lost entries


@virtual
@pytest.mark.parametrize(
    ("kind", "text"),
    [("StaleFence", "is open elsewhere"), ("JournalConflict", "the store has lost entries")],
)
async def test_the_error_tells_an_outbox_elsewhere_from_lost_entries(kind: str, text: str) -> None:
    journal = Journal()
    async with journal.outbox() as outbox:
        journal.refused = [kind, "why", ""]
        with pytest.raises(DeliveryFailed, match=text) as failed:
            await outbox._step("append", number=MESSAGES, entries=(b"",))
    assert failed.value.reason == "stale"
