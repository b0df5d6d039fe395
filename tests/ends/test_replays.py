"""A replay of two dead letters, each of which ends in any way: every letter has one fate."""

from __future__ import annotations

import asyncio
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.pages.dead_letters import REPLAY_S, answer_replay_letters
from shardbus.config.settings import ShardingSettings
from shardbus.entities.dead_letters import DeadLetters
from shardbus.errors import BufferFull
from shardbus.transport.drop_reports import Origin
from tests.virtual_time import virtual

GONE = 999
ENDS = "taken", "waits a moment", "waits for ever", "refused", "gone"


class Router:
    """Takes each message as its letter's payload says."""

    def __init__(self) -> None:
        self.sent_ids: list[str] = []

    def key(self, method: str) -> tuple[str, str]:
        return "page", method

    def tell(self, key: object, entity_id: str, payload: bytes) -> Any:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        match payload.decode():
            case "refused":
                raise BufferFull("no room")
            case "taken":
                room.set_result(None)
            case "waits a moment":
                asyncio.get_running_loop().call_later(REPLAY_S / 4, room.set_result, None)
        self.sent_ids.append(entity_id)
        return room


@pytest.mark.parametrize("ends", list(product(ENDS, ENDS)))
@virtual
async def test_each_letter_is_sent_and_gone_or_kept_with_a_reason(ends: tuple[str, str]) -> None:
    loop, router = asyncio.get_running_loop(), Router()
    letters = DeadLetters(lambda mark: "", lambda: 5.0)
    keep: Any = letters.keeper("page", ShardingSettings(dead_letter_payloads=100))
    for at, end in enumerate(ends):
        keep("failed", str(at), "add", end.encode(), Origin.OWN)
    numbers = [
        GONE + at if end == "gone" else letter.number
        for at, (end, letter) in enumerate(zip(ends, letters, strict=True))
    ]
    notes: list[object] = []
    node = SimpleNamespace(
        loop=loop,
        records=SimpleNamespace(letters=letters),
        regions={"page": SimpleNamespace(router=router)},
        note=lambda name, note: notes.append(note),
    )  # fmt: skip
    began = loop.time()
    admin: Any = SimpleNamespace(node=node)
    answer = await answer_replay_letters(admin, numbers, "ann")
    assert loop.time() - began <= REPLAY_S + 0.1
    failed = dict(answer["failed"])
    assert sorted([*answer["sent"], *failed]) == sorted(numbers), "each has one fate"
    assert [str(numbers.index(n)) for n in answer["sent"]] == router.sent_ids, "told once, in order"
    assert all(failed.values()), "each failure has a reason"
    left = {letter.number for letter in letters}
    assert not left.intersection(answer["sent"]), "what is sent is no letter any more"
    assert left >= {n for n in failed if n < GONE}, "what is not sent stays one"
    assert len(notes) == bool(answer["sent"])
