"""Two neighbouring versions of shardbus in one cluster, in a rolling restart under load, upwards
and downwards: every message is handled once, in order.

There is no release yet that is older. The neighbour is this tree with a membership protocol one
higher that still speaks this one, and without a feature: its decoder refuses frames between builds
with the feature. Its greetings of sessions say neither versions nor features, and its nodes do not
announce their entity types.

With a wheel in `NEIGHBOUR`, as `make test-upgrade` sets it, the neighbour is that wheel.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import zipfile
from pathlib import Path

import httpx
import pytest

from shardbus import AsyncClient, UnknownEntityType
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
        "FEATURES: tuple[str, ...] = (VITALS, VOTERS)",
        "FEATURES: tuple[str, ...] = ()",
    ),
    (
        "shardbus/node/node.py",
        "            features=(*FEATURES, *announced(types), *self._own_replica()),\n",
        "",
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
        '    """The sender\'s features. Builds before these fields leave them out."""\n',
        "",
    ),
    (
        "shardbus/wire/batch.py",
        "    versions: SessionVersions = SessionVersions()\n"
        "    features: Features = ()\n"
        '    """The node\'s features, as in a HELLO."""\n',
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
    """The value of PYTHONPATH for a node of the neighbouring version."""
    tree = tmp_path / "neighbour"
    if wheel := os.environ.get("NEIGHBOUR"):
        with zipfile.ZipFile(wheel) as packages:
            packages.extractall(tree)
        return os.pathsep.join(map(str, (tree, ROOT)))
    for name in ("shardbus", "cli"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in CHANGES:
        text = (tree / name).read_text(encoding="utf-8")
        (tree / name).write_text(text.replace(before, after), encoding="utf-8")
    # The tests' application stays where it is, behind the packages of the tree.
    return os.pathsep.join(map(str, (tree, tree / "cli", ROOT)))


def test_each_change_of_the_neighbour_has_its_place() -> None:
    for name, before, _ in CHANGES:
        assert (ROOT / name).read_text(encoding="utf-8").count(before) == 1, f"{name}: {before!r}"


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
        addresses = {row["node"].split("#")[0] for row in page["nodes"]}
        return ours <= addresses

    await until(known, "replies that say how busy the nodes are")
    for node in nodes:
        assert await dropped(node) == []
        assert "unreachable" not in node.err.read_text(), node.err.read_text()[-2000:]


RELEASES = "tests.process.releases:bus"


async def homes(client: AsyncClient, entity_type: str, count: int = 24) -> set[str]:
    """The addresses of the nodes that answer for entities of this type."""
    asks = (client.call(entity_type, f"e{i}", "where") for i in range(count))
    return {answer.partition("#")[0] for answer in await asyncio.gather(*asks)}


class Rollout:
    """Three nodes of a release that has the type `former`, and the next, which has `latest` in its
    place."""

    def __init__(self, lab: Processes, **neighbour: str) -> None:
        self.lab = lab
        self.before = {"app": RELEASES, "APP_TYPES": "former", **neighbour}
        self.after = {"app": RELEASES, "APP_TYPES": "latest"}
        self.old: list[NodeProcess] = []
        self.new: list[NodeProcess] = []

    async def begin(self) -> None:
        self.old = await self.lab.cluster(3, settings=("node.version=1",), **self.before)

    async def step(self, *, surge: bool) -> None:
        """Replace the oldest node: start the new one first, as the shipped Deployment does, or stop
        the old one first, as a restart of its unit of systemd."""
        options = {"settings": ("node.version=2",), **self.after}
        leaving = self.old.pop(0)
        if surge:
            self.new.append(await self.lab.start(**options))
            assert await leaving.terminate() == 0
        else:
            assert await leaving.terminate() == 0
            self.new.append(await self.lab.start(port=leaving.port, **options))

    async def check(self) -> None:
        """Each type answers on the nodes that have it, and nowhere else."""
        for entity_type, nodes in (("former", self.old), ("latest", self.new)):
            if nodes:
                async with self.lab.client(*nodes) as client:
                    assert await homes(client, entity_type) <= {node.address for node in nodes}


@pytest.mark.long
@pytest.mark.parametrize("surge", [True, False], ids=["deployment", "systemd"])
async def test_a_release_with_a_new_and_without_an_old_type_rolls_out_under_load(
    lab: Processes, redis_url: str, surge: bool
) -> None:
    lab.store = redis_url
    rollout = Rollout(lab)
    await rollout.begin()
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(5)
        await rollout.check()
        for _ in range(3):
            await rollout.step(surge=surge)
            await rollout.check()
            await load.rounds(5)
        await load.end()
        assert a.lost_messages == 0
    async with lab.client(*rollout.new) as client:
        with pytest.raises(UnknownEntityType):
            await client.call("former", "e1", "where")
    for node in lab.live:
        assert await node.terminate() == 0
    load.assert_exact(Ledger(lab.folder))


@pytest.mark.long
async def test_a_new_type_is_ready_beside_nodes_that_do_not_announce_theirs(
    lab: Processes, neighbour: str
) -> None:
    rollout = Rollout(lab, PYTHONPATH=neighbour)
    await rollout.begin()
    await rollout.step(surge=True)
    await rollout.check()
    assert len(rollout.old) == 2
