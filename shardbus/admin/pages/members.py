"""Commands to one member."""

from __future__ import annotations

from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.questions import question
from shardbus.errors import ConfigError, Refused, RequestError
from shardbus.http.page import EntityType, Json, NodeName, page
from shardbus.membership import events
from shardbus.membership.member import Service, Status
from shardbus.shells.region import check_own_table


@page("POST", "/v1/nodes/{node}/leave")
async def leave(admin: Administration, node: NodeName) -> Json:
    """Begin to hand off and leave; `self` is the node that answers."""
    target = admin.node.me if node == "self" else admin.member(node)
    if not await admin.node.rpc.ask(target, "leave"):
        raise ConfigError(f"{target} is not able to leave now")
    return {"node": str(target), "leaving": True}


@page("POST", "/v1/nodes/{node}/down")
async def down(admin: Administration, node: NodeName, force: bool = False) -> Json:
    """Declare a member dead; `force=true` removes it at once, without the agreement of the
    cluster."""
    target = admin.member(node)
    if force and target == admin.node.me:
        raise Refused(f"{target} is this node: a node cannot remove itself")
    command = events.Remove(target) if force else events.Down(target, for_good=True)
    admin.node.records.lost_nodes.decided([target], "an operator declared it dead")
    admin.node.cluster.post(command)
    return {"node": str(target), "down": True, "removed": force}


@page("POST", "/v1/nodes/{node}/shutdown-region")
async def shutdown_region(admin: Administration, node: NodeName, type: EntityType) -> Json:
    """Begin to hand off every shard of one type there; the node stays a member and a proxy of the
    type. `self` is the node that answers."""
    target = admin.node.me if node == "self" else admin.member(node, itself=True)
    check_own_table(admin.region(type))
    left = await admin.node.rpc.ask(target, "shutdown_region", type, of=type)
    return {"node": str(target), "type": type, "shards": left}


@page("POST", "/v1/nodes/{node}/cordon")
async def cordon(admin: Administration, node: NodeName) -> Json:
    """Keep new shards away from the member."""
    return _serve(admin, node, Service.CORDONED)


@page("POST", "/v1/nodes/{node}/uncordon")
async def uncordon(admin: Administration, node: NodeName) -> Json:
    """Let the member take new shards again."""
    return _serve(admin, node, Service.OPEN)


@page("POST", "/v1/nodes/{node}/drain")
async def drain(admin: Administration, node: NodeName) -> Json:
    """Keep new shards away from the member, and move its shards away."""
    return _serve(admin, node, Service.DRAINING)


def _serve(admin: Administration, node: str, service: Service) -> Json:
    """Change the service of a member. The last open member stays open, since no other could take
    shards without a home."""
    target = admin.member(node, itself=True)
    others = [m for m in admin.node.subscriptions.view.members if m.node != target]
    if service is not Service.OPEN and not any(
        m.status is Status.UP and m.service is Service.OPEN for m in others
    ):
        raise Refused(f"no member but {target} would take shards")
    admin.node.cluster.post(events.SetService(target, service))
    return {"node": str(target), "service": service.value}


@page("POST", "/v1/keys/reload")
async def reload_keys(admin: Administration, node: str | None = None) -> Json:
    """Let every node, or one, read the file of its secret again.

    `nodes`, each with `node`, `changed`, the fingerprints in `keys`, and `error`; `silent`.
    """
    if node is None:
        answers, silent = await admin.ask_all("reload_keys")
    else:
        target = admin.member(node, itself=True)
        try:
            answers, silent = {target: await admin.node.rpc.ask(target, "reload_keys")}, []
        except RequestError:
            answers, silent = {}, [str(target)]
    rows = [
        {"node": str(member), "changed": row[0], "keys": row[1], "error": row[2]}
        for member, row in answers.items()
    ]
    return {"nodes": rows, "silent": silent}


# ---- answers of this node


@question("leave")
def answer_leave(admin: Administration) -> bool:
    """Begin to leave, as at a SIGTERM. False if this node cannot yet."""
    if admin.node.phases.begin is None:
        return False
    admin.node.phases.begin()
    return True


@question("shutdown_region")
def answer_shutdown_region(admin: Administration, name: str) -> int:
    """Begin to hand off every shard of the type here. Returns the number of shards left."""
    region = admin.region(name)
    check_own_table(region)
    region.shutdown()
    return len(region.host.shards)


@question("reload_keys")
def answer_reload_keys(admin: Administration) -> list[Any]:
    """Read the file of the cluster's secret again. Returns whether it has changed, the
    fingerprints of its secrets, the newest first, and why it could not be read."""
    changed, error = False, ""
    try:
        changed = admin.node.rekey()
    except (ConfigError, Refused) as refused:
        error = str(refused)
    keyring = admin.node.keyring
    return [changed, [keys.fingerprint for keys in keyring.keys] if keyring else [], error]
