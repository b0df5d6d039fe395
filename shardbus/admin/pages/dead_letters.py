"""Dead letters of the whole cluster: listed, and sent again, for operators.

Each member answers for its own rings; the member that an operator asks adds them up. A letter is
named by its node and its number there, `UID-NUMBER`, so that a name never means another message.

**Replay.** The asked node chooses the letters, the oldest first and at most as many as it may, and
sends each member the numbers of its letters. So a dry run shows the letters that a replay would
send. A member sends as any sender of the type does, waits for room, and stops after `REPLAY_S`:
the rest stay letters. A filter leaves out the letters that may have been handled, or whose senders
have the error and may have sent them again: those are replayed only by name, or at the operator's
request.

Source: docs/how-to/operate.md; B.166.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from shardbus.admin.administration import Administration
from shardbus.admin.pages.events import Seconds
from shardbus.admin.questions import question
from shardbus.entities.dead_letters import DeadLetter, LetterRing
from shardbus.errors import ConfigError, Refused, RequestError, ShardBusError
from shardbus.http.page import PAGE_DEFAULT, EntityType, Json, Operator, PageSize, page
from shardbus.ids import NodeId
from shardbus.quantities import counted
from shardbus.sharding.events import Note

LETTERS_MAX = 1000
"""Letters on one page, and letters that one command replays."""
REPLAY_S = 2.0
"""For a member to send its letters."""
TURN = 100
"""Letters that are sent in one turn of the loop."""
UNCONFIRMED = "unconfirmed"
NAME = re.compile(r"([0-9a-f]{16})-([1-9][0-9]{0,17})")
COLUMNS = (
    "number",
    "at",
    "type",
    "reason",
    "entity",
    "method",
    "sender",
    "answered",
    "trace",
    "bytes",
    "kept",
)
"""The columns of a member's answer about one letter, in this order."""
Row = Mapping[str, Any]
"""These columns, and the node."""
NO_BODY = "its body was not kept"
NO_BODY_HINT = "set sharding.dead_letter_payloads to a size, which keeps the bodies of later ones"


class LetterFilter(msgspec.Struct, frozen=True):
    """The filter of an operator's request for letters. Empty texts and a `within` of 0 admit all;
    `within` is in seconds. With `once`, only those that were not handled and of which no sender has
    an error."""

    entity_type: str = ""
    reason: str = ""
    within: float = 0.0
    once: bool = False

    def admits(self, letter: DeadLetter, now: float) -> bool:
        """True if the letter is one of them."""
        if self.once and (
            letter.answered or (letter.reason == UNCONFIRMED and self.reason != UNCONFIRMED)
        ):
            return False
        return (
            self.entity_type in ("", letter.entity_type)
            and self.reason in ("", letter.reason)
            and (not self.within or now - letter.at <= self.within)
        )


@page("GET", "/v1/dead-letters")
async def dead_letters(
    admin: Administration,
    type: EntityType = "",
    reason: str = "",
    since: Seconds = 0.0,
    limit: PageSize = PAGE_DEFAULT,
) -> Json:
    """The last dropped messages of every node, newest first. `since` is in seconds.

    `letters`, each with `id`, `at`, `node`, `type`, `reason`
    ([metrics](metrics.md#reasons-of-drops) lists them), `entity` (its id), `method`, `sender` (the
    process that sent or forwarded it, or empty), `answered` (its sender got an error), `trace` (the
    id of its trace, or empty), `bytes` (of its body) and `kept` (the body is kept, so it can be
    replayed); `more`; `silent`.
    """
    rows, silent = await _rows(admin, LetterFilter(type, reason, since), limit, oldest=False)
    return {
        "letters": [shown(row) for row in rows[:limit]],
        "more": len(rows) > limit,
        "silent": silent,
    }


async def _rows(
    admin: Administration, letter_filter: LetterFilter, limit: int, *, oldest: bool
) -> tuple[list[Row], list[str]]:
    """Return the newest or the oldest letters of all members, one more than `limit` if there
    are more, and the members that did not answer."""
    columns = astuple(letter_filter)
    answers, silent = await admin.ask_all("dead_letters", *columns, oldest, limit + 1)
    rows = [row_of(node, letter) for node, letters in answers.items() for letter in letters]
    rows.sort(key=itemgetter("at", "number"), reverse=not oldest)
    return rows[: limit + 1], silent


@page("POST", "/v1/dead-letters/replay")
async def replay(
    admin: Administration,
    operator: Operator,
    id: tuple[str, ...] = (),
    type: EntityType = "",
    reason: str = "",
    since: Seconds = 0.0,
    limit: PageSize = PAGE_DEFAULT,
    answered: bool = False,
    dry_run: bool = False,
) -> Json:
    """Send dropped messages again: by `id`, or the oldest that `type`, `reason` and
    `since` admit, at most `limit`; `answered=true` also those whose senders got
    an error; `dry_run=true` only returns them.

    `dry_run`, `letters` (those that were chosen), `sent` (how many), `failed` (each with `id` and
    `why`), `without_body` (how many were left out), `more`, `silent`. 409 if a letter that is named
    is not kept any more, or no body is.
    """
    if not (id or type or reason or since):
        raise ConfigError("no dead letter is chosen", hint="add ?id=, ?type=, ?reason= or ?since=")
    if type and not id:
        admin.region(type)
    letter_filter = LetterFilter(type, reason, since, once=not answered)
    if id:
        rows, silent = await _named(admin, id, limit), list[str]()
    else:
        rows, silent = await _rows(admin, letter_filter, limit, oldest=True)
    chosen, more = rows[:limit], len(rows) > limit
    bodiless = [row for row in chosen if not row["kept"]]
    if bodiless and (id or len(bodiless) == len(chosen)):
        which = shown(bodiless[0])["id"] if id else f"each of {counted(len(bodiless), 'letter')}"
        raise Refused(f"dead letter {which}: {NO_BODY}", hint=NO_BODY_HINT)
    chosen = [row for row in chosen if row["kept"]]
    answer: Json = {
        "dry_run": dry_run,
        "letters": [shown(row) for row in chosen],
        "sent": 0,
        "failed": [],
        "without_body": len(bodiless),
        "more": more,
        "silent": silent,
    }
    return answer if dry_run else answer | await _send_again(admin, chosen, operator)


async def _named(admin: Administration, names: Sequence[str], limit: int) -> list[Row]:
    """Return the letters of these names, oldest first."""
    if len(names) > limit:
        letters = counted(len(names), "letter is named", "letters are named")
        raise Refused(f"{letters}: at most {limit}", hint="raise --limit")
    members = {f"{node.uid:016x}": node for node in admin.node.rpc.members()}
    numbers: dict[NodeId, list[int]] = {}
    for name in dict.fromkeys(names):
        match = NAME.fullmatch(name)
        if match is None:
            hint = "`shardbus dead-letters list` shows the names"
            raise ConfigError(f"{name!r:.60} names no dead letter", hint=hint)
        if match[1] not in members:
            raise Refused(f"the node of dead letter {name} is no member any more")
        numbers.setdefault(members[match[1]], []).append(int(match[2]))
    rows: list[Row] = []
    for node, of_node in numbers.items():
        answer = await admin.node.rpc.ask(node, "named_letters", of_node)
        rows += (row_of(node, letter) for letter in answer)
        for gone in set(of_node) - {letter[0] for letter in answer}:
            name = f"{node.uid:016x}-{gone}"
            hint = "it was replayed, or later ones have taken its place"
            raise Refused(f"dead letter {name} is not kept any more", hint=hint)
    rows.sort(key=itemgetter("at", "number"))
    return rows


async def _send_again(admin: Administration, rows: list[Row], operator: str) -> Json:
    """Let each member send its letters. A member that does not answer may have sent some."""
    by_node: dict[NodeId, list[int]] = {}
    for row in rows:
        by_node.setdefault(row["node"], []).append(row["number"])
    questions = (
        admin.node.rpc.ask(node, "replay_letters", numbers, operator)
        for node, numbers in by_node.items()
    )
    answers = await asyncio.gather(*questions, return_exceptions=True)
    sent, failed, silent = 0, [], []
    for (node, numbers), answer in zip(by_node.items(), answers, strict=True):
        if isinstance(answer, RequestError):
            silent.append(str(node))
            failed += [(node, number, "no answer: it may be sent") for number in numbers]
        elif isinstance(answer, BaseException):
            raise answer
        else:
            sent += len(answer["sent"])
            failed += [(node, number, why) for number, why in answer["failed"]]
    named = [{"id": f"{node.uid:016x}-{number}", "why": why} for node, number, why in failed]
    return {"sent": sent, "failed": named, "silent": silent}


# ---- answers of this node


@question("dead_letters")
def answer_dead_letters(
    admin: Administration,
    entity_type: str,
    reason: str,
    within: float,
    once: bool,
    oldest: bool,
    limit: int,
) -> list[list[Any]]:
    """At most `limit` letters without their bodies, the newest, or the oldest, first: number,
    time, type, reason, entity id, method, sender, whether it was answered, trace id,
    size, and whether its body is kept."""
    now = admin.node.environment.wall_clock()
    letter_filter = LetterFilter(entity_type, reason, within, once)
    letters = sorted(
        letter for letter in admin.node.records.letters if letter_filter.admits(letter, now)
    )
    if not oldest:
        letters.reverse()
    return [_columns(letter) for letter in letters[: max(0, min(limit, LETTERS_MAX + 1))]]


@question("named_letters")
def answer_named_letters(admin: Administration, numbers: list[int]) -> list[list[Any]]:
    """The letters of these numbers that are kept, as `dead_letters` returns them."""
    named = set(numbers)
    return [_columns(letter) for letter in admin.node.records.letters if letter.number in named]


@question("replay_letters")
async def answer_replay_letters(
    admin: Administration, numbers: list[int], operator: str
) -> dict[str, Any]:
    """Send the messages of these letters again, each at most once; `operator` is the name for the
    log. Returns the numbers that were sent, and why others were not."""
    until = admin.node.loop.time() + REPLAY_S
    sent: list[int] = []
    failed: list[list[Any]] = []
    types: dict[str, int] = {}
    for at, number in enumerate(numbers[:LETTERS_MAX], 1):
        ring = admin.node.records.letters.ring_of(number)
        left = until - admin.node.loop.time()
        why = "it is not kept any more" if ring is None else ""
        if ring is not None and left <= 0:
            why = f"it was not its turn within {REPLAY_S:g} s"
        elif ring is not None:
            letter = ring.get(number)
            why = await _send(admin, ring, number, left)
            if not why and letter is not None:
                sent.append(number)
                types[letter.entity_type] = types.get(letter.entity_type, 0) + 1
        if why:
            failed.append([number, why])
        if at % TURN == 0:
            await asyncio.sleep(0)
    for entity_type, count in types.items():
        admin.node.note(entity_type, replayed(count, operator))
    return {"sent": sent, "failed": failed}


async def _send(admin: Administration, ring: LetterRing, number: int, within: float) -> str:
    """Send one message, and wait for room for the next one. Returns why it was not sent; empty
    if it was."""
    try:
        room = ring.replay(number, partial(_tell, admin))
    except KeyError:
        return NO_BODY
    except ShardBusError as error:
        return str(error)
    try:
        async with asyncio.timeout(within):
            await room
    except TimeoutError:
        pass  # it is sent; the next one finds that the time is over
    return ""


def _tell(admin: Administration, letter: DeadLetter) -> Any:
    """Send a message as any sender of its type does."""
    assert letter.payload is not None
    router = admin.node.regions[letter.entity_type].router
    return router.tell(router.key(letter.method), letter.entity_id, letter.payload)


def _columns(letter: DeadLetter) -> list[Any]:
    """Return a letter without its body, in the order of `COLUMNS`."""
    return [*letter[:10], letter.payload is not None]


def row_of(node: NodeId, columns: Sequence[Any]) -> Row:
    """Return a member's answer about one letter."""
    return {"node": node, **dict(zip(COLUMNS, columns, strict=False))}


def shown(row: Row) -> Json:
    """Return a letter as a page shows it."""
    at = datetime.fromtimestamp(row["at"], UTC)
    node: NodeId = row["node"]
    rest = {key: row[key] for key in COLUMNS if key not in ("number", "at")}
    return {
        "id": f"{node.uid:016x}-{row['number']}",
        "at": at.isoformat(timespec="milliseconds"),
        "node": str(node),
        **rest,
    }


def replayed(count: int, operator: str) -> Note:
    """Return the log's note about messages that an operator has sent again."""
    return Note("letters_replayed", f"{counted(count, 'dead letter')}, by {operator:.100}")
