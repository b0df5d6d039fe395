"""The command lines of containers and of systemd are ones that `shardbus` understands, and the
nodes of the compose file agree on their seeds."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shardbus import ShardBus
from shardbus.config.loading import load
from shardbus.config.settings import HttpSettings, Settings
from shardbus.http.app import create_app
from shardbus.http.guard import with_tokens
from shardbus.node.served_node import AFTERWARDS_S
from shardbus.node.shutdown_phases import Phases
from shardbus.store.urls import default_url
from shardbus_cli import health, node
from shardbus_cli import main as cli
from shardbus_cli.exit_codes import CommandFailure
from shardbus_cli.node_http import own_token
from tests.unit.http.http_kit import FakeNode

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "systemd" / "shardbus@.service").read_text(encoding="utf-8")
NODES = ("node1", "node2", "node3")
SECRET = "/etc/shardbus/cluster.secret"
TOKEN_FILE = "/etc/shardbus/reader.token"

ANALYZE = shutil.which("systemd-analyze") or ""
WORKERS_MORE_S = 10.0
"""The extra of a supervisor of workers over one node."""

Started = list[tuple[str, Settings]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The nodes that commands would have started."""
    started_: Started = []

    def run(bus: ShardBus, settings: Settings, *others: object) -> int:
        started_.append((bus.name, settings))
        return 0

    monkeypatch.setattr(node, "_run", run)
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("FLIGHTS_CLUSTER", raising=False)
    return started_


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
            default = re.fullmatch(r'"\$\{\w+:-(\w+)\}"', value)
            yield name, default[1] if default else value.strip('"')


@pytest.mark.parametrize("name", NODES)
def test_the_nodes_of_the_compose_file(name, started, monkeypatch, tmp_path):
    assert "<<: *node" in service(name)
    secret = tmp_path / "cluster.secret"
    assert cli.run(["keys", "new", str(secret)]) == 0
    for variable, value in environment():
        monkeypatch.setenv(variable, value.replace("/etc/shardbus", str(tmp_path)))
    assert cli.run(words(service(name), "command")) == 0
    [(cluster, settings)] = started
    assert cluster == "flights"
    assert settings.node.seeds == tuple(f"{other}:7355" for other in NODES)
    assert settings.node.advertise == name
    assert settings.store.url == "redis://redis:6379/0"
    assert settings.security.secret == str(secret)
    assert settings.http.host == "0.0.0.0"
    assert not settings.security.insecure
    assert settings.http.reader_token_file == str(tmp_path / "reader.token")


def test_the_secret_is_made_at_the_first_start_and_read_by_all(tmp_path):
    first = service("secret")
    assert words(first, "command") == ["keys", "new", "--if-missing", SECRET]
    assert words(first, "volumes") == ["secret:/etc/shardbus"]
    assert "    token:\n      condition: service_completed_successfully" in node_block()
    second = service("token")
    assert words(second, "command") == ["keys", "token", "--if-missing", TOKEN_FILE]
    assert words(second, "volumes") == ["secret:/etc/shardbus"]
    assert "      secret:\n        condition: service_completed_successfully" in second
    for reader in (node_block(), service("flights")):
        assert words(reader, "volumes") == ["secret:/etc/shardbus:ro"]
    assert "environment: *environment" in service("flights")
    file = tmp_path / "cluster.secret"
    for _ in range(2):
        assert cli.run(["keys", "new", "--if-missing", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    token = tmp_path / "reader.token"
    for _ in range(2):
        assert cli.run(["keys", "token", "--if-missing", str(token)]) == 0
    assert token.stat().st_mode & 0o777 == 0o600
    held = with_tokens(HttpSettings(reader_token_file=str(token)))
    assert len(held.reader_token) == 32
    assert (held.token, held.reader_token_file) == ("", str(token))


async def test_the_pages_of_the_compose_file_need_the_token_and_the_probes_do_not(tmp_path):
    """So the health check works without one, and the commands of `docker compose exec` with it."""
    names = dict(environment())
    assert names["SHARDBUS_HTTP__READER_TOKEN_FILE"] == names["SHARDBUS_NODE_TOKEN_FILE"]
    token = tmp_path / "reader.token"
    assert cli.run(["keys", "token", str(token)]) == 0
    of = with_tokens(HttpSettings(host="0.0.0.0", reader_token_file=str(token)))
    transport = httpx.ASGITransport(create_app(FakeNode().pages, of, "node1"))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8558") as client:
        assert (await client.get("/readyz")).status_code in (200, 503)
        assert (await client.get("/v1/nodes")).status_code == 401
        bearer = {"authorization": f"Bearer {token.read_text().strip()}"}
        assert (await client.get("/v1/nodes", headers=bearer)).status_code == 200


def test_commands_take_the_token_of_a_file(tmp_path, monkeypatch):
    file = tmp_path / "reader.token"
    file.write_text(" 0123456789abcdef\n")
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN", raising=False)
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN_FILE", str(file))
    assert own_token() == "0123456789abcdef"
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "of the variable")
    assert own_token() == "of the variable"
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN")
    for wrong in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("SHARDBUS_NODE_TOKEN_FILE", str(wrong))
        with pytest.raises(CommandFailure, match="cannot be read"):
            own_token()


def test_http_is_published_on_the_loopback_of_the_machine_only():
    places = [words(service(name), "ports") for name in NODES]
    assert places == [[f"127.0.0.1:{8558 + n}:8558"] for n in range(len(NODES))]
    published = re.findall(r"^ +ports: .*$", COMPOSE, re.MULTILINE)
    assert len(published) == len(NODES) + 2


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
    calls: list[tuple[str, int, str]] = []

    def answer(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
        calls.append((host, port, path))
        return 503, '{"checks": {}}'

    monkeypatch.setattr(health, "_ask", answer)
    assert json.loads(check)[0] == "shardbus"
    assert cli.run(json.loads(check)[1:]) == 5
    assert calls == [("127.0.0.1", Settings().http.port, "/readyz")]


def test_the_image_runs_as_a_user_that_is_named_by_number():
    """Kubernetes does not see that a name is root's, and runAsNonRoot then refuses the image."""
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
    assert line.endswith(" $WORKERS")
    line = line.removesuffix(" $WORKERS")
    program, *arguments = shlex.split(line.replace("%i", "examples.flights:bus"))
    assert program.endswith("/bin/shardbus")
    words = [str(config) if word == "/etc/shardbus/node.toml" else word for word in arguments]
    assert cli.run(words) == 0
    [(cluster, settings)] = started
    assert (cluster, settings.node.port) == ("flights", 7411)
    assert "Type=notify" in UNIT


@pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is missing")
def test_systemd_accepts_the_unit(tmp_path):
    """The hardening options too: an unknown word would be a line on standard error."""
    unit = UNIT.replace("/opt/shardbus/bin/shardbus", "/bin/true").replace("/opt/shardbus", "/")
    (tmp_path / "shardbus@.service").write_text(unit, encoding="utf-8")
    command = [ANALYZE, "verify", "--man=no", str(tmp_path / "shardbus@shop.service")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = unit.replace("PrivateTmp=", "PrivatTmp=")
    (tmp_path / "shardbus@.service").write_text(wrong, encoding="utf-8")
    again = subprocess.run(command, text=True, capture_output=True, check=False)
    assert "PrivatTmp" in again.stderr


def test_the_unit_permits_what_libzmq_does_in_any_process():
    """It aborts if it may not set the scheduler of its threads, or list interfaces."""
    [families] = re.findall(r"^RestrictAddressFamilies=(.+)$", UNIT, re.MULTILINE)
    assert {"AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"} == set(families.split())
    filters = re.findall(r"^SystemCallFilter=(.+)$", UNIT, re.MULTILINE)
    assert filters[-1] == "sched_setscheduler", "after the groups that forbid it"
    assert "SystemCallErrorNumber=EPERM" in UNIT


def test_the_steps_for_systemd_begin_with_nothing():
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    steps = page.partition("\n## systemd\n")[2].partition("```sh\n")[2].partition("```")[0]
    made, used = set[str](), set[str]()
    for line in steps.splitlines():
        match shlex.split(line):
            case ["mkdir", "-p", folder] | ["python3", "-m", "venv", folder]:
                made.add(folder)
            case ["cp", source, target]:
                assert (ROOT / source).is_file() or source == "shop.py", source
                used.add(target.rstrip("/"))
            case ["touch", file]:
                used.add(str(Path(file).parent))
    assert used <= made | {"/etc/systemd/system"}
    assert "daemon-reload" in steps


def leaves_within_s() -> float:
    """Seconds within which a node has left, by the defaults."""
    settings = Settings()
    return Phases(settings.shutdown).total(settings.sharding.handoff_timeout) + AFTERWARDS_S


def test_systemd_waits_until_a_node_has_left():
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(seconds) > leaves_within_s() + WORKERS_MORE_S


def test_docker_waits_until_a_node_has_left():
    [seconds] = re.findall(r"^  stop_grace_period: (\d+)s$", node_block(), re.MULTILINE)
    assert int(seconds) > leaves_within_s()


def test_workers_are_words_of_the_command(started, monkeypatch, tmp_path):
    """`WORKERS=--workers=4` in the unit's file of variables."""
    counts: list[int] = []
    monkeypatch.setattr(node, "_supervise", lambda settings, workers, *more: counts.append(workers))
    assert cli.run(["node", "start", "examples.flights:bus", "--workers=4"]) in (0, None)
    assert counts == [4]


def test_S1_18_clouds_get_a_higher_threshold_of_the_failure_detector() -> None:
    values = tomllib.loads((ROOT / "configs" / "cloud.toml").read_text(encoding="utf-8"))
    detector = load(
        [("cloud.toml", values), ("own", {"node": {"advertise": "10.0.0.1"}})]
    ).cluster.failure_detector
    assert (detector.threshold, detector.acceptable_heartbeat_pause) == (12.0, 5.0)
    assert Settings().cluster.failure_detector.threshold == 8.0
