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
from shardbus.store.urls import default_url
from shardbus_cli import health, node
from shardbus_cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "configs" / "systemd" / "shardbus@.service").read_text(encoding="utf-8")
TOKEN = "sixteen-bytes-or-more"
NODES = ("node1", "node2", "node3")
SECRET = "/etc/shardbus/cluster.secret"

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


def node_block() -> str:
    """The lines that all nodes of the compose file share."""
    [lines] = re.findall(r"^x-node: &node\n((?:  .*\n)+)", COMPOSE, re.MULTILINE)
    return str(lines)


def environment() -> Iterator[tuple[str, str]]:
    [block] = re.findall(r"^  environment: &environment\n((?:    .*\n)+)", COMPOSE, re.MULTILINE)
    for line in block.splitlines():
        name, _, value = line.strip().partition(": ")
        if not name.startswith("#"):
            yield name, value.strip('"').replace("${SHARDBUS_READER_TOKEN:-}", TOKEN)


@pytest.mark.parametrize("name", NODES)
def test_the_nodes_of_the_compose_file(name, started, monkeypatch, tmp_path):
    assert "<<: *node" in service(name)
    secret = tmp_path / "cluster.secret"
    assert cli.run(["keys", "new", str(secret)]) == 0
    for variable, value in environment():
        monkeypatch.setenv(variable, value.replace(SECRET, str(secret)))
    assert cli.run(words(service(name), "command")) == 0
    [(cluster, settings)] = started
    assert cluster == "flights"
    assert settings.node.seeds == tuple(f"{other}:7355" for other in NODES)
    assert settings.node.advertise == name
    assert settings.store.url == "redis://redis:6379/0"
    assert settings.security.secret == str(secret)
    assert settings.http.host == "0.0.0.0"


def test_the_secret_is_made_at_the_first_start_and_read_by_all(tmp_path):
    first = service("secret")
    assert words(first, "command") == ["keys", "new", "--if-missing", SECRET]
    assert words(first, "volumes") == ["secret:/etc/shardbus"]
    assert "condition: service_completed_successfully" in node_block()
    for reader in (node_block(), service("flights")):
        assert words(reader, "volumes") == ["secret:/etc/shardbus:ro"]
    assert "environment: *environment" in service("flights")
    file = tmp_path / "cluster.secret"
    for _ in range(2):
        assert cli.run(["keys", "new", "--if-missing", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600


def test_http_is_published_on_the_loopback_of_the_machine_only():
    places = [words(service(name), "ports") for name in NODES]
    assert places == [[f"127.0.0.1:{8558 + n}:8558"] for n in range(len(NODES))]
    published = re.findall(r"^ +ports: .*$", COMPOSE, re.MULTILINE)
    assert len(published) == len(NODES)


def test_what_ends_with_an_error_is_started_again():
    """As a node that was downed or came before its Redis; one that left by command stays away."""
    assert re.findall(r"^  restart: (.*)$", node_block(), re.MULTILINE) == ["on-failure"]
    assert "restart: unless-stopped" in service("redis")


def test_one_service_builds_the_image_of_all():
    assert COMPOSE.count("build:") == 1
    assert "build: ." in service("secret")
    for user in (node_block(), service("secret"), service("flights")):
        assert re.findall(r"^ +image: (.*)$", user, re.MULTILINE) == ["shardbus"]


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


def test_the_image_runs_as_a_user_that_is_named_by_number():
    """Kubernetes cannot tell whether a name is root's, and runAsNonRoot then refuses the image."""
    users = re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)
    assert users == ["10001"]
    assert "--uid 10001" in DOCKERFILE


def test_any_user_keeps_state_in_a_volume_of_the_image(monkeypatch):
    [state] = re.findall(r"^ENV XDG_STATE_HOME=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE) == [state]
    assert f"install -d -m 1777 {state}" in DOCKERFILE
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert default_url("shop") == f"sqlite:///{state}/shardbus/shop.db"


def test_a_health_check_is_seldom_enough_to_cost_little():
    """Each takes some 60 ms of processor time: at most 1 % of a core for a node."""
    [interval] = re.findall(r"^HEALTHCHECK --interval=(\d+)s", DOCKERFILE, re.MULTILINE)
    assert 0.060 / int(interval) <= 0.01


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
