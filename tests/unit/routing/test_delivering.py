"""Deliveries and keyed asks whose client closes: each has one error, which shows whether a handler
may have run. A delivery that is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from shardbus.config.settings import DeliverySettings
from shardbus.deliveries.producer import DeliveryEnd
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    LocalProtocolError,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    RequestError,
    SchemaError,
    StateUnreadable,
    Unhandled,
    UnknownEntityType,
)
from shardbus.routing.delivering import PAYLOAD_MAX, DeliveryCounts, DeliverySender
from tests.virtual_time import virtual

CLOSED = LocalProtocolError("the client is closed")
IN_DOUBT = [NodeLost("gone"), AskTimeout("late")]
DEFINITE = [BufferFull("full"), MailboxFull("full")]
REFUSED = [UnknownEntityType("none"), SchemaError("no")]
OF_A_RELEASE = [
    UnknownEntityType("none"),
    StateUnreadable("newer", entity_type="page", entity_id="x", version=2),
]
"""Errors that the node of another release does not give."""


class Failing:
    """The sender to a type whose asks fail with these errors; later ones are not answered."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sent = 0

    def key(self, method: str) -> tuple[str, str]:
        return "page", method

    def route_for(self, entity_id: str) -> None: ...

    def ask(self, *message: Any) -> asyncio.Future[Any]:
        self.sent += 1
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.errors:
            if isinstance(self.errors[0], LocalProtocolError):
                raise self.errors[0]
            outcome.set_exception(self.errors.pop(0))
        return outcome

    def ask_for(self, answer: Any, *message: Any) -> None:
        self.sent += 1
        if self.errors:
            answer.set_exception(self.errors.pop(0))


def deliverer(**settings: Any) -> DeliverySender:
    limits, loop = DeliverySettings(**settings), asyncio.get_running_loop()
    return DeliverySender("me", limits, DeliveryCounts(), loop)


async def error_of_keyed_ask(errors: Sequence[Exception]) -> BaseException:
    sender: Any = Failing(*errors)
    answer = deliverer().ask_once(sender, "x", "add", b"", "order-17", 60_000, lambda body: body)
    await asyncio.wait([answer])
    error = answer.exception()
    assert error is not None
    return error


@pytest.mark.parametrize("last", [*REFUSED, CLOSED], ids=repr)
@pytest.mark.parametrize("second", DEFINITE, ids=repr)
@pytest.mark.parametrize("first", [*IN_DOUBT, *DEFINITE], ids=repr)
@virtual
async def test_a_keyed_ask_is_definite_only_if_each_copy_was(
    first: Exception, second: Exception, last: Exception
) -> None:
    error = await error_of_keyed_ask([first, second, last])
    assert isinstance(error, RequestError)
    assert error.definite is (first in DEFINITE)
    assert type(error) is type(second if last is CLOSED else last)
    assert all(one.definite for one in (*DEFINITE, *REFUSED)), "others share these errors"


@virtual
async def test_a_keyed_ask_that_begins_after_the_close_is_not_sent() -> None:
    assert await error_of_keyed_ask([CLOSED]) is CLOSED


@virtual
async def test_a_keyed_ask_that_is_not_handled_says_so() -> None:
    unhandled = Unhandled("no")
    assert await error_of_keyed_ask([unhandled]) is unhandled


@virtual
async def test_deliveries_that_a_close_ends_say_whether_they_were_sent() -> None:
    sender: Any = Failing()
    deliveries = deliverer(window=2)
    outcomes = [deliveries.deliver(sender, "x", "add", b"") for _ in range(4)]
    deliveries.close("the client is closed")
    errors = [outcome.exception() for outcome in outcomes]
    assert sender.sent == 2
    assert [(type(e), getattr(e, "definite", None)) for e in errors] == [
        (NodeLost, False),
        (NodeLost, False),
        (NodeLost, True),
        (NodeLost, True),
    ]


@pytest.mark.parametrize("error", [*OF_A_RELEASE, SchemaError("no")], ids=repr)
@virtual
async def test_a_stored_delivery_waits_for_a_release_that_takes_it(error: Exception) -> None:
    sender: Any = Failing(*[error] * 30)
    deliveries, ends = deliverer(attempts=3), list[tuple[Any, ...]]()
    letter = deliveries.letter(sender, "x", "add", b"", lambda *end: ends.append(end))
    deliveries.offer(letter, ("page", "x"))
    await asyncio.sleep(600)
    if isinstance(error, SchemaError):
        assert (ends, sender.sent) == ([(DeliveryEnd.REFUSED, error)], 1)
    else:
        assert not ends
        assert sender.sent > 10


@pytest.mark.parametrize("error", OF_A_RELEASE, ids=repr)
@virtual
async def test_a_caller_that_awaits_its_delivery_gets_such_an_error_at_once(
    error: Exception,
) -> None:
    sender: Any = Failing(error)
    with pytest.raises(type(error)):
        await deliverer().deliver(sender, "x", "add", b"")
    assert sender.sent == 1


@pytest.mark.parametrize("earlier", [0, 1, 2, 3], ids="{} before".format)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("size", [0, PAYLOAD_MAX, PAYLOAD_MAX + 1])
@virtual
async def test_a_delivery_is_sent_refused_or_waits_for_room(
    size: int, closed: bool, earlier: int
) -> None:
    sender: Any = Failing()
    deliveries = deliverer(window=2)
    for _ in range(earlier):
        deliveries.deliver(sender, "x", "add", b"")
    if closed:
        deliveries.close("the client is closed")
    before = sender.sent, deliveries.unconfirmed
    refusal = LocalProtocolError if closed else MessageTooLarge if size > PAYLOAD_MAX else None
    if refusal is None:
        deliveries.deliver(sender, "x", "add", bytes(size))
        assert deliveries.unconfirmed == earlier + 1
        assert sender.sent == min(earlier + 1, 2)
    else:
        with pytest.raises(refusal):
            deliveries.deliver(sender, "x", "add", bytes(size))
        assert (sender.sent, deliveries.unconfirmed) == before
