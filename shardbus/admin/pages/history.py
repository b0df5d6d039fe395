"""The load of the cluster in the last hour, from the nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from shardbus.admin.administration import Administration
from shardbus.admin.load_history import COLUMNS, KEEPERS, STEP_S, SavedHour
from shardbus.admin.questions import question
from shardbus.errors import RequestError
from shardbus.http.page import Json, page
from shardbus.ids import NodeId
from shardbus.membership.member import WORKING, age_order

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
    `silent`; `ended`: the nodes in the rows that are members no more, each with `node` and `ago`,
    the seconds since the end of its last sample. A step in which no node took a sample has no row.
    The three oldest members keep the hour of all in memory: a killed node is missing with its last
    20 s. Shared for 4 s.
    """
    return await admin.shared("history", FRESH_S, partial(_ask_members, admin))


def keep(admin: Administration) -> None:
    """Add the new samples of all members, if this node is one of those that keep the hour."""
    if admin.node.me in _keepers(admin) and not admin.node.phases.current:
        admin.tasks.spawn(_kept(admin), admin.node.loop, name="the hour of the cluster")


async def _kept(admin: Administration) -> None:
    await history(admin)


def _keepers(admin: Administration) -> list[NodeId]:
    """Return the members that keep the hour of all, the oldest first."""
    view = admin.node.view
    working = [m for m in view.members if m.status in WORKING] if view is not None else []
    return [member.node for member in sorted(working, key=age_order)[:KEEPERS]]


async def _take_hour(admin: Administration) -> None:
    """Take the sums of a keeper that answers, the oldest first."""
    for keeper in _keepers(admin):
        if keeper == admin.node.me:
            continue
        try:
            answer = await admin.node.rpc.ask(keeper, "cluster_hour")
            saved = msgspec.convert(answer, SavedHour)
        except (RequestError, msgspec.ValidationError):
            continue  # it is gone, or of a release without this question
        if saved.nodes:
            admin.hour.take(admin.node.loop.time() / STEP_S, saved)
            return


async def _ask_members(admin: Administration) -> Json:
    node, hour = admin.node, admin.hour
    if not hour.is_fresh(node.loop.time() / STEP_S):
        await _take_hour(admin)
    members = node.rpc.members() or [node.me]
    since = hour.asks(members)
    questions = (node.rpc.ask(member, "load_history", after) for member, after in since.items())
    answers = await asyncio.gather(*questions, return_exceptions=True)
    silent = []
    for member, answer in zip(since, answers, strict=True):
        if isinstance(answer, RequestError):
            silent.append(str(member))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            hour.add(member, node.loop.time() / STEP_S, *answer)
            await asyncio.sleep(0)  # an hour of a node takes a millisecond
    now = node.loop.time() / STEP_S
    rows, ended = hour.rows(now), hour.ended(now, members)
    return {
        "at": time.time(),
        "step": STEP_S,
        "columns": ["ago", "nodes", *COLUMNS],
        "rows": [[round(row[0] * STEP_S, 1), *(round(v, DIGITS) for v in row[1:])] for row in rows],
        "silent": silent,
        "ended": [{"node": name, "ago": round(ago * STEP_S, 1)} for name, ago in ended],
    }


# ---- answers of this node


@question("load_history")
def answer_load_history(
    admin: Administration, after: int
) -> tuple[float, Sequence[str], list[list[float]]]:
    """The time of this loop in steps, the names of the values, and the samples after that number,
    oldest first: the number and the values."""
    return admin.history.after(after)


@question("cluster_hour")
def answer_cluster_hour(admin: Administration) -> SavedHour:
    """The sums of all nodes as this node has them, for one that has none: the time of this loop in
    steps, the names of the values, the steps, and the nodes in them."""
    return admin.hour.saved(admin.node.loop.time() / STEP_S)
