"""Pages about the node that answers: its settings, its decisions, its tasks, its log."""

from __future__ import annotations

from functools import partial

from shardbus.admin.administration import Administration
from shardbus.admin.setting_rows import rows_of
from shardbus.admin.task_stacks import task_stacks
from shardbus.http.page import Json, page

TASKS_FRESH_S = 1.0


@page("GET", "/v1/settings")
async def settings(admin: Administration) -> Json:
    """The settings of this node and who set them."""
    rows = rows_of(admin.node.settings, admin.origins)
    return {"node": str(admin.node.me), "settings": rows}


@page("GET", "/v1/downing")
async def downing(admin: Administration) -> Json:
    """How this node decides after a split, and its last decisions."""
    settings = admin.node.settings.cluster.downing
    return {
        "node": str(admin.node.me),
        "strategy": settings.strategy,
        "stable_after": settings.stable_after,
        "decisions": admin.node.decisions.page(),
    }


@page("GET", "/v1/tasks")
async def tasks(admin: Administration) -> Json:
    """Where the tasks of this node wait; readers share it for a second."""
    stacks = partial(task_stacks, admin.node.loop, admin.node.regions.values())
    return {"node": str(admin.node.me), **await admin.shared("tasks", TASKS_FRESH_S, stacks)}


@page("GET", "/v1/log")
async def log(admin: Administration) -> Json:
    """The last lines of this node's log, as JSON objects; none if the application writes the
    log itself."""
    lines = admin.log() if admin.log is not None else []
    return {"node": str(admin.node.me), "held": admin.log is not None, "lines": lines}
