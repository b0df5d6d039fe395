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
    """The settings of this node, and who set them; secrets are masked.

    `node`, `settings`, each with `setting`, `value`, `origin`: `default`, a file, a variable, an
    option, or `the application`.
    """
    rows = rows_of(admin.node.settings, admin.origins)
    return {"node": str(admin.node.me), "settings": rows}


@page("GET", "/v1/downing")
async def downing(admin: Administration) -> Json:
    """This node's last 20 decisions about splits.

    `node`, `strategy`, `stable_after`, `decisions`, oldest first, each with `at`, `strategy`,
    `outcome` (`down others`, `down ourselves`), `reason`, and the members that it counted: `side`,
    `cut_off`, `gone`, `bad_links`, `votes_here`, `votes_there`, `oldest`; `down` are the downed
    members.
    """
    settings = admin.node.settings.cluster.downing
    return {
        "node": str(admin.node.me),
        "strategy": settings.strategy,
        "stable_after": settings.stable_after,
        "decisions": admin.node.records.decisions.page(),
    }


@page("GET", "/v1/tasks")
async def tasks(admin: Administration) -> Json:
    """Where the tasks of this node wait: their stacks, in groups.

    `node`; `groups`, the largest first, each with `count`, `state` (`waiting`, `ready`, `running`,
    `ending`: it is being cancelled), `waits_for` (the class of the awaited object: `Future`, `Task`
    ...), up to five `names` (of a handler its method, type and entity; of other tasks their names)
    and `stack`, places as `file:line in function`, innermost last, at most 40, without values of
    variables; `tasks` (how many there are), `left_out` (of these, how many are in no group: those
    beyond 20,000 tasks or 200 groups); `threads`, each with `name` and `stack`. Handlers that have
    not waited yet have no task. Shared for 1 s.
    """
    stacks = partial(task_stacks, admin.node.loop, admin.node.regions.values())
    return {"node": str(admin.node.me), **await admin.shared("tasks", TASKS_FRESH_S, stacks)}


@page("GET", "/v1/log")
async def log(admin: Administration) -> Json:
    """The last lines that shardbus has logged on this node.

    `node`, `lines` (JSON objects as text, at most 500 of 4,000 characters), and `held`, false if
    the application writes the log itself, as one that embeds a node does. Lines of the application
    are not kept.
    """
    lines = admin.log() if admin.log is not None else []
    return {"node": str(admin.node.me), "held": admin.log is not None, "lines": lines}
