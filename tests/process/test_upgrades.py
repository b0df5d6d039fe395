"""Two neighbouring versions of shardbus in one cluster, in a rolling restart under load, upwards
and downwards: every message is handled once, in order.

There is no release yet that is older. The neighbour is this tree with a membership protocol one
higher that still speaks this one, and without a feature: its decoder refuses what a build with the
feature says to its like. Its greetings of sessions say neither versions nor features.

With a wheel in `NEIGHBOUR`, as `make test-upgrade` sets it, the neighbour is that wheel.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import httpx
import pytest

from shardbus.membership.messages import OLDEST_PROTOCOL, PROTOCOL
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_ledger import Ledger, Load
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
CHANGES = (
    (
        "shardbus/membership/messages.py",
        f"\nPROTOCOL = {PROTOCOL}\n",
        f"\nPROTOCOL = {PROTOCOL + 1}\n",
    ),
    (
        "shardbus/membership/messages.py",
        f"\nOLDEST_PROTOCOL = {OLDEST_PROTOCOL}\n",
        f"\nOLDEST_PROTOCOL = {PROTOCOL}\n",
    ),
    (
        "shardbus/membership/member.py",
        "FEATURES: tuple[str, ...] = (VITALS,)",
        "FEATURES: tuple[str, ...] = ()",
    ),
    ("shardbus/wire/gossip.py", "    vitals: WireVitals | None = None\n", ""),
    (
        "shardbus/wire/gossip.py",
        "        case WireHeartbeatReply(sequence, sent_at, lag_ms, consent, busy):\n"
        "            vitals = Vitals(*astuple(busy)) if busy is not None else None\n",
        "        case WireHeartbeatReply(sequence, sent_at, lag_ms, consent):\n"
        "            vitals = None\n",
    ),
    ("shardbus/wire/gossip.py", "            if vitals is None:\n", "            if True:\n"),
    (
        "shardbus/wire/batch.py",
        "    versions: SessionVersions = SessionVersions()\n"
        "    features: Features = ()\n"
        '    """What the sender speaks. Builds before these fields leave them out."""\n',
        "",
    ),
    (
        "shardbus/wire/batch.py",
        "    versions: SessionVersions = SessionVersions()\n"
        "    features: Features = ()\n"
        '    """What the node speaks, as in a HELLO."""\n',
        "",
    ),
    (
        "shardbus/transport/outgoing.py",
        "            versions=SESSION_VERSIONS,\n            features=SESSION_FEATURES,\n",
        "",
    ),
    (
        "shardbus/transport/outgoing.py",
        "        self.session.features = frozenset(welcome.features)\n",
        "",
    ),
    (
        "shardbus/transport/incoming.py",
        "        if not SESSION_VERSIONS.meets(hello.versions):\n",
        "        if False:\n",
    ),
    (
        "shardbus/transport/incoming.py",
        '            reason = f"sessions of version {hello.versions} are not {SESSION_VERSIONS}"\n',
        '            reason = ""\n',
    ),
    (
        "shardbus/transport/incoming.py",
        "LinkWelcome(owner.node, fresh, SESSION_VERSIONS, SESSION_FEATURES)",
        "LinkWelcome(owner.node, fresh)",
    ),
    (
        "shardbus/transport/incoming.py",
        "        session.features = frozenset(hello.features)\n"
        "        session.wants_drop_reports = hello.listens or DROP_REPORTS in session.features\n",
        "        session.wants_drop_reports = hello.listens\n",
    ),
)


@pytest.fixture
def neighbour(tmp_path: Path) -> str:
    """What PYTHONPATH is for a node of the neighbouring version."""
    tree = tmp_path / "neighbour"
    if wheel := os.environ.get("NEIGHBOUR"):
        with zipfile.ZipFile(wheel) as packages:
            packages.extractall(tree)
        return os.pathsep.join(map(str, (tree, ROOT)))
    for name in ("shardbus", "cli"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in CHANGES:
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{name} has not {before!r}, once"
        (tree / name).write_text(text.replace(before, after), encoding="utf-8")
    # The tests' application stays where it is, behind the packages of the tree.
    return os.pathsep.join(map(str, (tree, tree / "cli", ROOT)))


async def dropped(node: NodeProcess) -> list[str]:
    """Messages of membership that the node could not read, as its metrics count them."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://127.0.0.1:{node.http_port}/metrics")).text
    return [line for line in text.splitlines() if "gossip_malformed" in line]


@pytest.mark.long
@pytest.mark.parametrize("upwards", [True, False], ids=["upwards", "downwards"])
async def test_a_rolling_restart_between_neighbours_loses_and_reorders_nothing(
    lab: Processes, redis_url: str, neighbour: str, upwards: bool
) -> None:
    lab.store = redis_url
    ours: dict[str, str] = {}
    before, after = (
        (ours, {"PYTHONPATH": neighbour}) if upwards else ({"PYTHONPATH": neighbour}, ours)
    )
    await lab.cluster(3, **before)
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(10)
        for _ in range(3):
            await lab.start(**after)
            await load.rounds(10)
            assert await lab.live[0].terminate() == 0
            await load.rounds(10)
        await load.end()
        assert a.lost_messages == 0
    for node in lab.live:
        assert await node.terminate() == 0
    load.assert_exact(Ledger(lab.folder))


@pytest.mark.long
async def test_neighbours_say_to_each_other_only_what_both_can_read(
    lab: Processes, neighbour: str
) -> None:
    """A reply to a heartbeat with an unknown field would be no sign of life."""
    nodes = [await lab.start(), await lab.start(PYTHONPATH=neighbour), await lab.start()]
    await lab.agree(*nodes)
    ours = {nodes[0].address, nodes[2].address}

    async def known() -> bool:
        page = await nodes[0].page("/v1/load") or {"nodes": []}
        found = {row["node"].split("#")[0] for row in page["nodes"]}
        return ours <= found

    await until(known, "replies that say how busy the nodes are")
    for node in nodes:
        assert await dropped(node) == []
        assert "unreachable" not in node.err.read_text(), node.err.read_text()[-2000:]
