"""All pages of a node for its operators, in the order of `docs/reference/http.md`, and its answers
to the questions of other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.load_history import STEP_S
from shardbus.admin.pages import (
    checkup,
    cluster,
    dead_letters,
    entities,
    events,
    explanation,
    findings,
    handlers,
    health,
    history,
    mailboxes,
    members,
    node,
    outboxes,
    overview,
    projections,
    reminders,
    sending,
    shards,
    states,
    values,
)
from shardbus.admin.questions import register
from shardbus.http.page import NodePages, Page, declared_in
from shardbus.node.node import Node

OF_CLUSTER = (health, overview, history, cluster, members)
OF_TYPES = (shards, handlers, entities, explanation, sending, states, reminders, values)
OF_EVENTS = (findings, checkup, events, dead_letters, node, outboxes, mailboxes, projections)
PAGES: tuple[Page[..., Any], ...] = declared_in(Page, *OF_CLUSTER, *OF_TYPES, *OF_EVENTS)


def answer_questions(admin: Administration) -> None:
    """Let a node answer the questions of other nodes, and keep the history of its load for them."""
    admin.node.every("history of the load", 1, admin.history.sample)
    register(admin, *OF_CLUSTER, *OF_TYPES, *OF_EVENTS)


def administer(
    services: Node,
    origins: Mapping[str, str] | None = None,
    log: Callable[[], list[str]] | None = None,
) -> NodePages:
    """Let a node answer the questions of other nodes, and keep the hour of the cluster if it is one
    of the oldest; return its pages. The arguments are as for `Administration`."""
    admin = Administration(services, origins, log)
    answer_questions(admin)
    services.every("hour of the cluster", STEP_S, partial(history.keep, admin))
    return bound(admin)


def bound(admin: Administration) -> NodePages:
    """Return the pages of one node."""
    return {page.name: page.bound(admin) for page in PAGES}
