"""Pages for probes and for Prometheus.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from shardbus.admin.administration import Administration
from shardbus.admin.metrics import render
from shardbus.admin.own_replica import replica_row
from shardbus.http.page import Check, Checks, page
from shardbus.membership.member import Status
from shardbus.quantities import counted
from shardbus.shells.region import RegionShell

STALLED_S = 10.0
"""A node whose loop is later than this is not alive."""
STORE_FAILED_S = 60.0
"""Seconds for which readiness shows a failure of the store."""


@page("GET", "/livez")
async def livez(admin: Administration) -> Checks:
    """This process works; uses neither the store nor another node.

    The probes have `status`, and `checks` (name to `ok` and `detail`); 200 or 503. `?verbose`
    formats them for people.
    """
    stopped, lag = admin.node.membership.stopped, admin.node.membership.lag
    ended = stopped.done()
    return {
        "loop": Check(lag < STALLED_S, f"{lag:.3f} s late"),
        "membership": Check(not ended, stopped.result() if ended else "running"),
    }


@page("GET", "/readyz")
async def readyz(admin: Administration) -> Checks:
    """This node is Up, is not leaving, is not suspended, no task of it has failed, and its regions
    are registered with their coordinators; `http.ready_types` bounds these to some types, and with
    `http.ready_types_once` a coordinator that is away makes no node unready that was ready before;
    with `cluster://` the node's replica serves, which waits until a new disk has all rows;
    `store`, which never fails, shows the last failure of a load or a save for a minute."""
    return readiness(admin)


@page("GET", "/startupz")
async def startupz(admin: Administration) -> Checks:
    """As `/readyz` until it was ready once, then as `/livez`."""
    checks = readiness(admin)
    return await livez(admin) if admin.was_ready else checks


@page("GET", "/metrics")
async def metrics(admin: Administration) -> Response:
    """[Metrics](metrics.md) in Prometheus's text format."""
    return Response(render(admin.node), headers={"content-type": CONTENT_TYPE_LATEST})


def readiness(admin: Administration) -> Checks:
    """Check that this node can take work. The settings of HTTP say which types count, and for how
    long."""
    http = admin.node.settings.http
    checks = _own_checks(admin)
    for name in admin.tables:
        ok, detail = _registered(admin, name, admin.node.regions[name])
        counts = (not http.ready_types or name in http.ready_types) and not (
            http.ready_types_once and admin.was_ready
        )
        checks[f"coordinator:{name}"] = Check(ok or not counts, detail)
    admin.was_ready = admin.was_ready or all(check.ok for check in checks.values())
    return checks


def _own_checks(admin: Administration) -> dict[str, Check]:
    """Check this node alone. A store that fails is shown, and takes no node out of service: all
    would go at once, with the entities that work without it."""
    node = admin.node
    status = node.view.status if node.view is not None else None
    phase = node.phases.current
    detail = phase or node.membership.describe_joining() or admin.status
    checks = {"membership": Check(status is Status.UP and not phase, detail)}
    if suspended := node.gate.describe():
        checks["suspension"] = Check(False, suspended)
    if rival := node.membership.requests.rival:  # the data in memory works beside it
        checks["cluster"] = Check(True, rival)
    if failed := node.failed_tasks:
        text = f"{counted(failed, 'task')} of this node failed: see its log"
        checks["tasks"] = Check(False, text)
    if why := _own_replica(admin):
        checks["replica"] = Check(False, why)
    ago = node.states.silent_ago
    if ago is not None and ago < STORE_FAILED_S:
        text = f"a load or a save failed {ago:.0f} s ago: {node.states.silent_because}"
        checks["store"] = Check(True, text)
    return checks


def _own_replica(admin: Administration) -> str:
    """Return why this node's replica does not serve, empty if it does, or if there is none. A
    rollout waits for it, so that it never has blank disks in place of a majority."""
    row = replica_row(admin.node)
    if row is None or not row["member"] or row["serves"]:
        return ""
    return f"this node's replica does not serve: {row['why']}"


def _registered(admin: Administration, name: str, region: RegionShell) -> tuple[bool, str]:
    """Return whether a region is registered with its coordinator, or need not be; and why."""
    why_no_member = admin.node.singletons[name].why_no_member
    if why := why_no_member(region.settings.role):
        return True, f"no member hosts it: {why}"
    if region.coordinator is not None and region.router.region.registered:
        return True, f"coordinator {region.coordinator}"
    if why := why_no_member(region.coordinator_role):
        # A rollout that waited for this node would never reach the members that lack the type.
        return not _lacks(admin, region.coordinator_role), f"no member coordinates it: {why}"
    return False, "not registered yet"


def _lacks(admin: Administration, role: str) -> bool:
    """True if no member is up with this role."""
    view = admin.node.view
    return bool(role) and view is not None and view.oldest(role) is None
