"""The command lines of containers and of systemd are ones that `shardbus` understands, and the
nodes of the compose file agree on their seeds."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbus import ShardBus
from shardbus.config.loading import load
from shardbus.config.settings import Settings
from shardbus.node.supervisor_link import SupervisorLink
from shardbus_cli import health, node
from shardbus_cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "configs" / "systemd" / "shardbus@.service").read_text(encoding="utf-8")
NODES = ("node1", "node2", "node3")

Started = list[tuple[str, Settings]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The nodes that commands would have started."""
    found: Started = []

    def run(
        bus: ShardBus, settings: Settings, ready_fd: int | None, leash: SupervisorLink | None
    ) -> int:
        found.append((bus.name, settings))
        return 0

    monkeypatch.setattr(node, "_run", run)
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("FLIGHTS_CLUSTER", raising=False)
    return found


def service(name: str) -> str:
    """The lines of one service of the compose file."""
    [lines] = re.findall(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    return str(lines)


def words(text: str, key: str) -> list[str]:
    [value] = re.findall(rf"^\s*{key}:? (\[.*\])$", text, re.MULTILINE)
    return [str(word) for word in json.loads(value)]


def environment() -> Iterator[tuple[str, str]]:
    [block] = re.findall(r"^  environment:\n((?:    .*\n)+)", COMPOSE, re.MULTILINE)
    for line in block.splitlines():
        name, _, value = line.strip().partition(": ")
        yield name, value.strip('"')


@pytest.mark.parametrize("name", NODES)
def test_the_nodes_of_the_compose_file(name, started, monkeypatch):
    assert "<<: *node" in service(name)
    for variable, value in environment():
        monkeypatch.setenv(variable, value)
    assert cli.run(words(service(name), "command")) == 0
    [(cluster, settings)] = started
    assert cluster == "flights"
    assert settings.node.seeds == tuple(f"{other}:7355" for other in NODES)
    assert settings.node.advertise == name
    assert settings.store.url == "redis://redis:6379/0"
    assert settings.security.insecure


def test_without_the_explicit_setting_they_refuse(started, capsys):
    assert cli.run(words(service("node1"), "command")) == 2
    assert not started
    assert "outside the loopback" in capsys.readouterr().err


def test_the_producer_knows_every_node():
    producer = service("flights")
    assert words(producer, "entrypoint") == ["python", "-m", "examples.flights.replay"]
    assert words(producer, "command") == [f"tcp://{name}:7355" for name in NODES]


def test_the_image_starts_a_node_and_asks_for_its_health(started, monkeypatch):
    assert words(DOCKERFILE, "ENTRYPOINT") == ["shardbus"]
    assert cli.run(words(DOCKERFILE, "CMD")) == 0
    assert [cluster for cluster, _ in started] == ["flights"]
    [check] = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    asked: list[tuple[str, int]] = []

    def answer(host: str, port: int) -> tuple[int, str]:
        asked.append((host, port))
        return 503, '{"checks": {}}'

    monkeypatch.setattr(health, "_ask", answer)
    assert json.loads(check)[0] == "shardbus"
    assert cli.run(json.loads(check)[1:]) == 5
    assert asked == [("127.0.0.1", Settings().http.port)]


def test_the_image_runs_as_nobody_in_particular():
    after = DOCKERFILE.partition("USER ")[2]
    assert after.startswith("shardbus\n")
    assert "useradd" in DOCKERFILE


def test_the_unit_starts_a_node(started, tmp_path):
    config = tmp_path / "node.toml"
    config.write_text("[node]\nport = 7411\n", encoding="utf-8")
    [line] = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    program, *arguments = shlex.split(line.replace("%i", "examples.flights:bus"))
    assert program.endswith("/bin/shardbus")
    own = [str(config) if word == "/etc/shardbus/node.toml" else word for word in arguments]
    assert cli.run(own) == 0
    [(cluster, settings)] = started
    assert (cluster, settings.node.port) == ("flights", 7411)
    assert "Type=notify" in UNIT


def test_S1_18_clouds_get_a_higher_threshold_of_the_failure_detector() -> None:
    values = tomllib.loads((ROOT / "configs" / "cloud.toml").read_text(encoding="utf-8"))
    detector = load(
        [("cloud.toml", values), ("own", {"node": {"advertise": "10.0.0.1"}})]
    ).cluster.failure_detector
    assert (detector.threshold, detector.acceptable_heartbeat_pause) == (12.0, 5.0)
    assert Settings().cluster.failure_detector.threshold == 8.0
