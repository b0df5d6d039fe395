"""A store inside the cluster that is backed up, restored and recovered by the CLI."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from shardbus.transport.secret_file import new_secret, secrets_text, write_private
from tests.process.served_replicas import KEYS, Load, Served
from tests.waiting import until

pytestmark = pytest.mark.long


def stop(served: Served) -> None:
    for port in list(served.processes):
        served.kill(port)


async def go_on(served: Served) -> None:
    """Start all replicas, of which the first one has a disk that was founded anew."""
    first, *others = served.ports
    for port in served.ports:
        served.start(port)

    async def serves() -> bool:
        return (await served.status())[first]["state"] == "founded"

    await until(serves, "the replica that was founded anew")
    for port in others:
        code, text = await served.ask("add", f"127.0.0.1:{port}")
        assert code == 0, text
    await served.serving()


async def test_a_store_survives_the_loss_of_all_disks_by_a_backup_and_of_two_without(
    served: Served, tmp_path: Path
) -> None:
    for port in served.ports:
        served.start(port)
    await served.serving()
    first, second, third = served.ports
    place = ["--port", str(first), "--path", str(tmp_path / str(first))]
    store = served.store()
    await store.start()
    load = Load(store)
    loading = asyncio.create_task(load.run())
    await until(lambda: len(load.acked) == KEYS, "the first saves")

    before = dict(load.acked)
    code, text = await served.ask("backup", str(tmp_path / "backup"))
    assert code == 0, text
    code, text = await served.ask("backup", str(tmp_path / "backup"))
    assert (code, "is there already; name another file" in text) == (1, True), text
    after = dict(load.sent)
    code, text = await served.ask("verify", "--json")
    facts = json.loads(text.splitlines()[0])
    assert (code, len(facts["replicas"]), facts["differences"]) == (0, 3, [])
    load.ended = True
    await loading
    await store.close()

    stop(served)
    for port in served.ports:
        shutil.rmtree(tmp_path / str(port))
    code, text = await served.ask("restore", str(tmp_path / "backup"), *place)
    assert code == 0, text
    assert f"shardbus store add 127.0.0.1:{second}" in text
    code, text = await served.ask("restore", str(tmp_path / "backup"), *place)
    assert (code, "has a disk of a replica already" in text) == (6, True)
    await go_on(served)
    store = served.store()
    await store.start()
    states = await store.read_states("cart", list(before))
    for entity, state in zip(before, states, strict=True):
        assert state is not None, entity
        assert before[entity] <= int(state) <= after[entity]

    load = Load(store)
    loading = asyncio.create_task(load.run())
    await until(lambda: len(load.acked) == KEYS, "saves in the restored store")
    code, text = await served.ask("recover", *place, "--accept-loss")
    assert (code, "a process has the replica" in text) == (1, True), text
    load.ended = True
    await loading
    stop(served)
    for port in (second, third):
        shutil.rmtree(tmp_path / str(port))
    code, text = await served.ask("recover", *place)
    assert code == 6, text
    assert f"only the lost ones had: 127.0.0.1:{second}, 127.0.0.1:{third}" in text, text
    code, text = await served.ask("recover", *place, "--accept-loss")
    assert code == 0, text
    code, text = await served.ask("verify", "--path", str(tmp_path / str(first)))
    assert code == 0, text
    await go_on(served)
    states = await store.read_states("cart", list(load.acked))
    for entity, state in zip(load.acked, states, strict=True):
        assert state is not None, entity
        assert int(state) <= load.sent[entity]
    await store.close()
    code, text = await served.ask("verify")
    assert code == 0, text


async def test_a_command_without_the_secret_is_told_so_and_founds_no_second_store(
    served: Served, tmp_path: Path
) -> None:
    """Replicas that refuse its keys are no replicas that are gone."""
    secret = tmp_path / "cluster.secret"
    write_private(secret, secrets_text([new_secret()]))
    served.secret = str(secret)
    for port in served.ports:
        served.start(port)

    async def all_serve() -> bool:
        code, text = await served.ask("status")
        return code == 0 and text.count("founded") == len(served.ports)

    await until(all_serve, "every replica")
    first, *_ = served.ports
    served.kill(first)
    served.secret = ""
    code, text = await served.ask("status")
    assert (code, text.count("refused")) == (5, 2), text
    assert "the cluster has a secret, and this process has none" in text
    place = ["--port", str(first), "--path", str(tmp_path / str(first))]
    code, text = await served.ask("recover", *place, "--accept-loss")
    assert code == 6, text
    assert "runs, and refuses this command: " in text
    assert "the cluster has a secret, and this process has none" in text
    served.secret = str(secret)
    code, text = await served.ask("recover", *place, "--accept-loss", cluster="shpo")
    assert (code, "runs, and does not answer" in text) == (6, True), text
    served.start(first)
    await until(all_serve, "every replica, with the disk as it was")
