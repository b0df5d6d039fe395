"""The load of the cluster in the last hour, from the nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from shardbus.admin.administration import Administration
from shardbus.admin.load_history import COLUMNS, STEP_S
from shardbus.admin.questions import question
from shardbus.errors import RequestError
from shardbus.http.page import Json, page

FRESH_S = 4.0
DIGITS = 6
"""Digits behind the point of a value."""


@page("GET", "/v1/history")
async def history(admin: Administration) -> Json:
    """The load of the cluster in the last hour, in steps of 10 s, from samples that the nodes keep.

    `at` (seconds since 1970), `step` (seconds), `columns` and `rows`, oldest first, each with a
    value for each column: `ago` (seconds since the end of the step), `nodes` (how many have sampled
    it), `received`, `failures`, `dropped`, `late`, `store_calls`, `store_seconds` (per second, of
    all nodes), `waiting` (messages), `entities`, and of the nodes the highest `busy` (0 to 1),
    `lag`, `handled` and `waited` (seconds that 99 of 100 messages did not exceed, 0 without any);
    `silent`. A step in which no node took a sample has no row. A node keeps its hour in memory: one
    that has started again begins anew, and one that is gone has taken its part along. Shared for 4
    s.
    """
    return await admin.shared("history", FRESH_S, partial(_ask_members, admin))


async def _ask_members(admin: Administration) -> Json:
    node, hour = admin.node, admin.hour
    members = node.rpc.members() or [node.me]
    asked = hour.asks(members)
    questions = (node.rpc.ask(member, "load_history", after) for member, after in asked.items())
    answers = await asyncio.gather(*questions, return_exceptions=True)
    silent = []
    for member, answer in zip(asked, answers, strict=True):
        if isinstance(answer, RequestError):
            silent.append(str(member))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            hour.add(member, node.loop.time() / STEP_S, *answer)
            await asyncio.sleep(0)  # an hour of a node takes a millisecond
    rows = hour.rows(node.loop.time() / STEP_S)
    return {
        "at": time.time(),
        "step": STEP_S,
        "columns": ["ago", "nodes", *COLUMNS],
        "rows": [[round(row[0] * STEP_S, 1), *(round(v, DIGITS) for v in row[1:])] for row in rows],
        "silent": silent,
    }


# ---- answers of this node


@question("load_history")
def answer_load_history(
    admin: Administration, after: int
) -> tuple[float, Sequence[str], list[list[float]]]:
    """The time of this loop in steps, the names of the values, and the samples after that number,
    oldest first: the number and the values."""
    return admin.history.after(after)
