"""The preStop hook of `deploy/kubernetes/pre-stop`, by its own command line, at real nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from tests.process.app import Account
from tests.process.nodes import Processes
from tests.process.warm import ROOT

PATCH = ROOT / "deploy" / "kubernetes" / "pre-stop" / "pods.yaml"
IDS = [f"a{number}" for number in range(20)]


@pytest.mark.long
async def test_the_hook_drains_a_node_and_sigterm_ends_it(lab: Processes, tmp_path: Path) -> None:
    patch = yaml.safe_load(PATCH.read_text(encoding="utf-8"))
    [container] = patch["spec"]["template"]["spec"]["containers"]
    program, *command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "shardbus"
    token = tmp_path / "operator.token"
    assert await lab.run("keys", "token", str(token)).ended() == 0
    stays, goes = await lab.cluster(2, settings=("http.write=true", f"http.token_file={token}"))
    async with lab.client() as client:
        await asyncio.gather(*(client.ref(Account, i).add(1) for i in IDS))
        hook = lab.run(
            *command,
            SHARDBUS_NODE_TOKEN_FILE=str(token),
            SHARDBUS_NODE_URL=f"http://127.0.0.1:{goes.http_port}",
        )
        assert await hook.ended() == 0, hook.err.read_text()
        wheres = await asyncio.gather(*(client.ref(Account, i).where() for i in IDS))
        assert {where.partition("#")[0] for where in wheres} == {stays.address}
        assert await goes.page("/readyz"), "it is still a member, and serves"
        assert await goes.terminate() == 0
        assert "handing off 0 shards" in goes.err.read_text()
        assert await asyncio.gather(*(client.ref(Account, i).add(1) for i in IDS)) == [2] * len(IDS)
