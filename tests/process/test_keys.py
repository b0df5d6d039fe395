"""Real nodes with a cluster's secret: it is rotated by the command line under load, lets nodes
listen off the loopback without `insecure`, and is nowhere in their output and pages."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from shardbus import AsyncClient
from shardbus.transport.secret_file import (
    new_secret,
    read_secrets,
    secrets_text,
    write_private,
)
from shardbus.transport.zmq.curve import Keyring
from tests.certificates import self_signed
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_ledger import ASK, PAGES, TELL, Ledger, Load
from tests.process.test_replicas import Trio
from tests.process.test_workers import WORKERS, begin
from tests.waiting import PATIENCE_S, until

WRITES = ("http.write=true", "http.token=sesame-opens-the-door")
TOKEN = "sesame-opens-the-door"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.secret"
    write_private(path, secrets_text([new_secret()]))
    return path


def client(lab: Processes, secret: Path) -> AsyncClient:
    addresses = [f"tcp://{node.address}" for node in lab.live]
    return AsyncClient(
        *addresses, cluster="lab", timeout=PATIENCE_S, connect_timeout=PATIENCE_S, secret=secret
    )


async def command(lab: Processes, node: NodeProcess, *words: str) -> NodeProcess:
    url = f"http://127.0.0.1:{node.http_port}"
    done = lab.run(*words, SHARDBUS_NODE_TOKEN=TOKEN, SHARDBUS_NODE_URL=url)
    assert await done.ended() == 0, done.err.read_text()
    return done


@pytest.mark.long
async def test_a_rotation_under_load_loses_and_reorders_nothing(
    lab: Processes, secret: Path
) -> None:
    """All nodes and clients read one file. The first half is done by command, the second by
    signals."""
    nodes = await lab.cluster(3, settings=(*WRITES, f"security.secret={secret}"))
    [old] = read_secrets(secret)
    async with client(lab, secret) as a, client(lab, secret) as b:
        load = Load(a, b)
        await load.rounds(10)
        await command(lab, nodes[0], "keys", "rotate", str(secret))
        new, _ = Keyring(secret).keys
        done = await command(lab, nodes[0], "keys", "reload", "--json")
        assert done.out.read_text().count(f'"keys":["{new.fingerprint}"') == 3
        await load.rounds(20)
        await command(lab, nodes[0], "keys", "rotate", "--finish", str(secret))
        for node in nodes:
            node.signal(signal.SIGHUP)

        async def dropped() -> bool:
            return all(
                node.err.read_text().count(f"under secret {new.fingerprint}") == 2 for node in nodes
            )

        await until(dropped, "the end of the old secret")
        await load.rounds(20)
        await lab.agree()
        await load.end()
        tells, asks = load.producers
        assert a.lost_messages == b.lost_messages == 0
    ledger = Ledger(lab.folder)
    assert (ledger.reordered, ledger.repeated, ledger.overlaps) == ([], [], [])
    assert set(asks.outcomes.values()) == {"ok"}
    assert len(asks.outcomes) == asks.rounds * PAGES == ledger.total(ASK)
    assert ledger.total(TELL) == tells.rounds * PAGES
    assert old not in read_secrets(secret)


@pytest.mark.long
async def test_the_replicas_of_the_cluster_store_take_a_new_secret_with_their_nodes(
    lab: Processes, secret: Path, tmp_path: Path
) -> None:
    """After a rotation they refuse the old one, commands reach them, and a node starts anew."""
    lab.store = "cluster://"
    trio, settings = Trio(lab), (*WRITES, f"security.secret={secret}")
    trio.begin(settings=settings)
    await trio.agree()
    node, old = trio.nodes[0], tmp_path / "old.secret"
    write_private(old, secrets_text(read_secrets(secret)))
    async with client(lab, secret) as user:
        await user.call("account", "a", "add", 5)
        for words in (("keys", "rotate"), ("keys", "rotate", "--finish")):
            await command(lab, node, *words, str(secret))
            await command(lab, node, "keys", "reload")
            await user.call("account", "a", "add", 1)
        newest = Keyring(secret).newest.fingerprint

        async def serving(file: Path) -> int:
            url = f"cluster://{','.join(f'127.0.0.1:{port + 2}' for port in trio.ports)}"
            words = ("store", "status", "--json", "--cluster", "lab", "--store", url)
            done = lab.run(*words, SHARDBUS_SECURITY__SECRET=str(file))
            await done.ended()
            rows = json.loads(done.out.read_text())["replicas"]
            return sum(row["state"] == "founded" for row in rows)

        async def taken() -> bool:
            return await serving(secret) == 3

        await until(taken, f"three replicas under secret {newest}")
        url = f"cluster://127.0.0.1:{trio.ports[0] + 2},127.0.0.1:{trio.ports[2] + 2}"
        listed = lab.run(
            "state", "list", "account", "--cluster", "lab", "--store", url, "--json",
            SHARDBUS_SECURITY__SECRET=str(secret),
        )  # fmt: skip
        assert await listed.ended() == 0, listed.err.read_text()
        assert [row["id"] for row in json.loads(listed.out.read_text())["states"]] == ["a"]
        assert await serving(old) == 0
        assert await trio.nodes[1].terminate() == 0
        trio.begin(1, settings=settings)
        await trio.agree()
        await user.call("account", "b", "add", 1)
        assert await user.call("account", "a", "get") == 7


@pytest.mark.long
async def test_off_the_loopback_a_secret_is_enough_and_needed(
    walled: Processes, secret: Path
) -> None:
    """Each node is on a machine of its own. One without the secret, and one with another, get the
    reason of the refusal and found no cluster."""
    keyed = ("security.insecure=false", f"security.secret={secret}")
    nodes = await walled.cluster(2, settings=keyed)
    other = secret.with_name("other.secret")
    write_private(other, secrets_text([new_secret()]))
    for settings, why in (
        (("security.insecure=false",), "outside the loopback"),
        ((), "has a secret, and this process has none"),
        (
            ("security.insecure=false", f"security.secret={other}"),
            "the cluster's secret differs",
        ),
    ):
        stranger = walled.begin(settings=settings, seeds=[n.address for n in nodes])
        assert await stranger.ended() != 0
        assert why in stranger.err.read_text()
        assert "ready" not in stranger.out.read_text()
    await walled.agree(*nodes)


async def test_a_secret_that_others_may_read_stops_a_node(lab: Processes, secret: Path) -> None:
    secret.chmod(0o644)
    node = lab.begin(settings=(f"security.secret={secret}",))
    assert await node.ended() == 2
    error = node.err.read_text()
    assert "other users may use it; chmod 600" in error
    assert len(error.splitlines()) == 1


@pytest.mark.long
async def test_no_secret_is_in_a_log_a_page_or_an_answer(lab: Processes, secret: Path) -> None:
    """Logs at debug, with strangers and a rotation, tracebacks of commands that fail over a damaged
    file, and every page that needs no argument."""
    settings = (*WRITES, f"security.secret={secret}", "log.level=debug")
    nodes = await lab.cluster(2, settings=settings)
    hidden = [*read_secrets(secret)]
    with pytest.raises(Exception, match="has a secret"):
        await AsyncClient(f"tcp://{nodes[0].address}", cluster="lab", secret="").__aenter__()
    async with client(lab, secret) as user:
        await user.call("page", "page-1", "where")
    shown = []
    damaged = secret.with_name("damaged.secret")
    write_private(damaged, secrets_text(hidden)[:-9] + "\n")
    half = hidden[0].hex()[:40]
    assert half in damaged.read_text()
    private_key = str(secret.with_name("own.key"))
    for words in (
        ("keys", "show", str(secret)),
        ("config", "show", "--set", f"security.secret={secret}", "--set", f"http.token={TOKEN}"),
        ("keys", "rotate", str(secret)),
        ("keys", "reload"),
        ("doctor", "--wait", "0"),
        ("events", "--json"),
        ("report", "--out", str(lab.folder / "report.zip")),
        ("--debug", "keys", "show", str(damaged)),
        ("--debug", "keys", "rotate", str(damaged)),
        ("--debug", "keys", "own", "shop", private_key, "--client", "--secret", str(damaged)),
        ("--debug", "ask", "page", "page-1", "where", "--secret", str(damaged)),
        (
            "--debug",
            "node",
            "start",
            "tests.process.app:bus",
            "--set",
            f"security.secret={damaged}",
        ),
    ):
        done = lab.run(
            *words,
            SHARDBUS_NODE_TOKEN=TOKEN,
            SHARDBUS_NODE_URL=f"http://127.0.0.1:{nodes[0].http_port}",
        )
        await done.ended()
        shown.append(done.out.read_text() + done.err.read_text())
    assert sum("is no secret of 64" in text and "Traceback" in text for text in shown) == 5, shown
    hidden += read_secrets(secret)
    with ZipFile(lab.folder / "report.zip") as archive:
        reported = {name: archive.read(name).decode() for name in archive.namelist()}
    logs = [text for name, text in reported.items() if name.endswith("/log.json")]
    assert len(logs) == len([name for name in reported if name.endswith("/settings.json")]) == 2
    assert all("epoch" in text or "is up" in text for text in logs), "the logs are in it"
    shown += reported.values()
    pages = ("cluster", "nodes", "types", "gossip", "checkup", "downing", "shards/page")
    for path in (*(f"/v1/{page}" for page in pages), "/readyz?verbose"):
        page = await nodes[0].page(path)
        assert page, path
        shown.append(str(page))
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        metrics = await http.get(f"http://127.0.0.1:{nodes[0].http_port}/metrics")
    assert metrics.is_success
    shown.append(metrics.text)
    await asyncio.gather(*(node.terminate() for node in nodes))
    shown += [node.out.read_text() + node.err.read_text(errors="replace") for node in nodes]
    text = "\n".join(shown)
    keys = [pair for keys in Keyring(secret).keys for pair in (keys.server, keys.node)]
    assert TOKEN not in text
    assert half not in text
    for word in [s.hex() for s in hidden] + [pair.secret.decode() for pair in keys]:
        assert word not in text
    assert Keyring(secret).newest.fingerprint in text  # the search works


@pytest.mark.long
async def test_a_unit_of_workers_speaks_https_asks_for_tokens_and_rotates(
    lab: Processes, secret: Path
) -> None:
    cert, key = self_signed(lab.folder)
    settings = (
        *WRITES,
        "http.reader_token=a-token-of-readers-only",
        f"http.tls_cert={cert}",
        f"http.tls_key={key}",
        f"security.secret={secret}",
    )
    unit = begin(lab, settings=settings)
    await until(unit.ready, "the ready line of the unit")
    assert f"https://127.0.0.1:{unit.http_port}" in unit.out.read_text()
    trusted = ssl.create_default_context(cafile=cert)
    url = f"https://127.0.0.1:{unit.http_port}"
    async with httpx.AsyncClient(base_url=url, verify=trusted, timeout=PATIENCE_S) as http:
        assert (await http.get("/readyz")).status_code == 200
        for path in ("/v1/nodes", "/metrics", "/v1/workers"):
            assert (await http.get(path)).status_code == 401
            http.headers["authorization"] = "Bearer a-token-of-readers-only"
            assert (await http.get(path)).status_code == 200
            del http.headers["authorization"]
        http.headers["authorization"] = "Bearer a-token-of-readers-only"
        metrics = (await http.get("/metrics")).text
        assert all(f'worker="{n}"' in metrics for n in range(WORKERS))
        assert (await http.post("/v1/keys/reload")).status_code == 403
        http.headers["authorization"] = f"Bearer {TOKEN}"
        write_private(secret, secrets_text([new_secret(), *read_secrets(secret)]), replace=True)
        rows = (await http.post("/v1/keys/reload")).json()["nodes"]
        assert [row["changed"] for row in rows] == [True] * WORKERS
    write_private(secret, secrets_text(read_secrets(secret)[:1]), replace=True)
    unit.signal(signal.SIGHUP)
    said = f"under secret {Keyring(secret).newest.fingerprint}"

    async def dropped() -> bool:
        return unit.err.read_text().count(said) == 2 * WORKERS

    await until(dropped, "the end of the old secret")
    assert await unit.terminate() == 0
