"""Limits on the entities in memory, shown and changed while the cluster runs.

Each node has a limit of its own for each type that it hosts. A change lasts for the life of the
process: a node that starts later, or again, begins with what its settings say.

Source: B.80, B.85; docs/reference/http.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.errors import Refused, RequestError
from shardbus.http.api import Json
from shardbus.ids import NodeId

if TYPE_CHECKING:
    from shardbus.node.node import Node
    from shardbus.shells.region import RegionShell


async def limits(
    node: Node, kind: RegionShell, wanted: int | None = None, on: NodeId | None = None
) -> Json:
    """What every node that hosts the type says, or one, after it has taken the wanted limit.

    Raises:
        Refused: there is no limit on remembered entities, or the one node does not host the type.
    """
    if wanted is not None and kind.settings.remember:
        raise Refused(f"entities of {kind.name!r} are remembered: there is no limit on them")
    if on is None:
        asked = node.rpc.members()
        answers = await node.rpc.ask_all("limit", kind.name, wanted, of=kind.name)
    else:
        asked, answers = [on], {}
        try:
            answers[on] = await node.rpc.ask(on, "limit", kind.name, wanted, of=kind.name)
        except RequestError:
            pass
        else:
            if answers[on] is None:
                raise Refused(f"{on} hosts no {kind.name!r}, or keeps its entities in memory")
    rows = [
        {"node": str(name), "limit": row[0], "entities": row[1], "evicted": row[2]}
        for name, row in answers.items()
        if row is not None
    ]
    return {
        "type": kind.name,
        "strategy": kind.settings.passivation_strategy,
        "nodes": rows,
        "silent": [str(name) for name in asked if name not in answers],
    }
