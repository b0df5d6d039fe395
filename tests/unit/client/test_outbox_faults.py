"""An outbox whose cluster fails it, without a cluster: a journal in memory, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shardbus.client.outbox import STEP_S, TTL_S, ClientOutbox
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
        self.ids: list[str] = []

    def key(self, method: str) -> tuple[str, str]:
        return "page", method

    def ask_for(self, waiter: Any, key: Any, entity_id: str, *rest: Any) -> None:
        self.ids.append(entity_id)
        if self.confirms:
            asyncio.get_running_loop().call_soon(
                waiter.set_result, DeliveryAnswer(AnswerCode.APPLIED)
            )


class Journal:
    """Answers the steps of an outbox that a former process has left three messages in. `errors`:
    those of the first questions for the sender of a type."""

    def __init__(self, *errors: Exception) -> None:
        self.receiver, self.errors = Receiver(), list(errors)
        self.entries = [
            encode_message(OutboxMessage("page", f"e{n}", "add", b"\x90")) for n in range(MESSAGES)
        ]
        self.trimmed = 0
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


@pytest.mark.parametrize(
    "error", [UnknownEntityType("none"), SchemaError("no"), MessageTooLarge("big")], ids=repr
)
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
