"""All pages of a node for its operators, in the order of `docs/reference/http.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardbus.admin.administration import Administration
from shardbus.admin.answers import NodeAnswers
from shardbus.admin.pages import (
    cluster,
    entities,
    events,
    explanation,
    findings,
    health,
    members,
    node,
    overview,
    shards,
    states,
)
from shardbus.admin.services import AdminServices
from shardbus.http.page import NodePages, pages_of

PAGES = pages_of(
    health,
    overview,
    cluster,
    members,
    shards,
    entities,
    explanation,
    states,
    findings,
    events,
    node,
)


def administer(
    services: AdminServices,
    origins: Mapping[str, str] | None = None,
    log: Callable[[], list[str]] | None = None,
) -> NodePages:
    """Let a node answer the questions of other nodes; return its pages. The arguments are those of
    `Administration`."""
    NodeAnswers(services).register()
    return bound(Administration(services, origins, log))


def bound(admin: Administration) -> NodePages:
    """Return the pages of one node."""
    return {page.name: page.bound(admin) for page in PAGES}
