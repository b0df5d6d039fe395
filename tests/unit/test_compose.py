"""`docker-compose.yml` fits the schema of the Compose specification. Of its Prometheus, Grafana and
collector: each file that is mounted exists, each address that one service has of another is one
that this other serves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import check_jsonschema
import httpx
import pytest
import yaml
from click.testing import CliRunner

from docs import make_monitoring
from examples.flights import traces
from shardbus.config.settings import HttpSettings, Settings
from shardbus.http.app import create_app
from shardbus.http.guard import with_tokens
from tests.unit.http.http_kit import FakeNode

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = [name for name in SERVICES if name.startswith("node")]
PROFILES = {"prometheus", "grafana", "traces"}


def mounts(service: str) -> dict[str, str]:
    """Where a service has which file, folder or volume."""
    sources = {}
    for text in SERVICES[service].get("volumes", ()):
        source, target, *_ = text.split(":")
        sources[target] = source
    return sources


def mounted(service: str, path: str) -> Path:
    """The file of this repository that a service has at a path."""
    for target, source in mounts(service).items():
        if path == target or path.startswith(f"{target}/"):
            return ROOT / source / path[len(target) :].lstrip("/")
    raise AssertionError(f"{service} has no {path}")


def of_option(service: str, option: str) -> str:
    [value] = [word.partition("=")[2] for word in SERVICES[service]["command"] if option in word]
    return str(value)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


PROMETHEUS = load(mounted("prometheus", of_option("prometheus", "--config.file")))
COLLECTOR = load(mounted("collector", of_option("collector", "--config")))
[SCRAPE] = PROMETHEUS["scrape_configs"]


def refused(file: Path) -> str:
    """The objections of the Compose specification's schema to a file; empty if it fits."""
    words = ["--builtin-schema", "vendor.compose-spec", str(file)]
    done = CliRunner().invoke(check_jsonschema.main, words)
    assert (done.exit_code == 0) is done.output.startswith("ok"), done.output
    return "" if done.exit_code == 0 else done.output


def test_the_schema_of_the_compose_specification_accepts_the_file() -> None:
    """All of it, whatever profile a service is in."""
    assert not refused(FILE)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    profiles: [", "    profile: ["),
        ("condition: service_healthy", "condition: healthy"),
        ("      retries: 30", "      retry: 30"),
        ("\nvolumes:", "\nvolume:"),
    ],
)
def test_the_schema_refuses_what_compose_does_not_know(
    right: str, wrong: str, tmp_path: Path
) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert right in text
    changed = tmp_path / "docker-compose.yml"
    changed.write_text(text.replace(right, wrong), encoding="utf-8")
    assert refused(changed)


def test_a_plain_up_starts_none_of_them_and_a_profile_what_it_needs() -> None:
    by_profile = {
        profile: {
            name for name, service in SERVICES.items() if profile in service.get("profiles", ())
        }
        for profile in PROFILES
    }
    assert by_profile == {
        "prometheus": {"prometheus"},
        "grafana": {"prometheus", "grafana"},
        "traces": {"collector"},
    }
    for name in NODES:
        assert "profiles" not in SERVICES[name]


def test_every_mounted_file_exists_and_every_volume_is_declared() -> None:
    for name in SERVICES:
        for source in mounts(name).values():
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_everything_is_published_on_the_loopback_only_and_once() -> None:
    ports = [text for service in SERVICES.values() for text in service.get("ports", ())]
    assert all(text.startswith("127.0.0.1:") for text in ports)
    published = [text.split(":")[1] for text in ports]
    assert len(published) == len(set(published)) == len(NODES) + 2


def test_prometheus_reads_every_node_and_the_alerts() -> None:
    [targets] = SCRAPE["static_configs"]
    assert targets["targets"] == [f"{name}:{Settings().http.port}" for name in NODES]
    folder = mounted("prometheus", of_option("prometheus", "--config.file")).parent
    assert [folder / name for name in PROMETHEUS["rule_files"]] == [make_monitoring.RULES]


async def test_prometheus_has_the_token_that_the_pages_need(tmp_path: Path) -> None:
    """It runs as the user of the image, who alone may read the token's file."""
    file = SCRAPE["authorization"]["credentials_file"]
    assert file == COMPOSE["x-node"]["environment"]["SHARDBUS_HTTP__READER_TOKEN_FILE"]
    assert mounts("prometheus")[str(Path(file).parent)] == mounts("node1")[str(Path(file).parent)]
    users = [line.split()[1] for line in (ROOT / "Dockerfile").read_text().splitlines()
             if line.startswith("USER ")]  # fmt: skip
    assert SERVICES["prometheus"]["user"] == users[-1]
    [place] = SERVICES["prometheus"]["tmpfs"]
    assert place.startswith(f"{of_option('prometheus', '--storage.tsdb.path')}:uid={users[-1]},")
    token = tmp_path / "reader.token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    settings = with_tokens(HttpSettings(host="0.0.0.0", reader_token_file=str(token)))
    transport = httpx.ASGITransport(create_app(FakeNode().pages, settings, "node1"))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8558") as client:
        assert (await client.get("/metrics")).status_code == 401
        bearer = {"authorization": f"Bearer {token.read_text().strip()}"}
        assert (await client.get("/metrics", headers=bearer)).status_code == 200


def test_grafana_has_prometheus_and_the_dashboard_that_is_made_from_the_declarations() -> None:
    place = "/etc/grafana/provisioning"
    [source] = load(mounted("grafana", f"{place}/datasources/shardbus.yml"))["datasources"]
    url = urlsplit(source["url"])
    assert (url.hostname, source["type"]) == ("prometheus", "prometheus")
    [port] = SERVICES["prometheus"]["ports"]
    assert port.endswith(f":{url.port}")
    [provider] = load(mounted("grafana", f"{place}/dashboards/shardbus.yml"))["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    assert mounted("grafana", home) == make_monitoring.DASHBOARD
    [variable] = [
        setting
        for setting in json.loads(make_monitoring.DASHBOARD.read_text())["templating"]["list"]
        if setting["type"] == "datasource"
    ]  # fmt: skip
    assert variable["query"] == source["type"]


def test_spans_of_nodes_and_producer_reach_the_collector_and_leave_it() -> None:
    environment = COMPOSE["x-node"]["environment"]
    assert SERVICES["flights"]["environment"] == environment
    url = urlsplit(environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert (url.scheme, url.hostname) == ("http", "collector")
    served = COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert served == f"0.0.0.0:{url.port}"
    pipeline = COLLECTOR["service"]["pipelines"]["traces"]
    for part, names in pipeline.items():
        assert names
        assert set(names) == COLLECTOR[part].keys()
    assert pipeline["processors"][0] == "memory_limiter"


@pytest.mark.parametrize(("endpoint", "exports"), [("false", False), ("", False), ("true", True)])
def test_the_example_exports_spans_only_if_it_is_asked_to(
    endpoint: str, exports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setenv("SHARDBUS_TRACING__ENABLED", endpoint)
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", made.append)
    if not exports:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert traces.export() is exports
    assert len(made) == exports
    for provider in made:
        provider.shutdown()  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is missing")
def test_compose_accepts_the_file_with_all_profiles(tmp_path: Path) -> None:
    profiles = [word for name in sorted(PROFILES) for word in ("--profile", name)]
    command = ["docker-compose", "--project-directory", str(ROOT), *profiles]
    environment = os.environ | {"TRACES": "true"}
    arguments = [*command, "--file", str(FILE), "config"]
    done = subprocess.run(arguments, text=True, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    assert resolved.keys() == SERVICES.keys()
    assert resolved["node1"]["environment"]["SHARDBUS_TRACING__ENABLED"] == "true"
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(FILE.read_text().replace("    profiles:", "    profile:"))
    again = subprocess.run(
        [*command, "--file", str(wrong), "config"], text=True, capture_output=True, check=False
    )
    assert again.returncode != 0
    assert "profile" in again.stderr


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing")
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "reader.token").write_text("0123456789abcdef")
    (tmp_path / "alerts.yml").write_text(make_monitoring.RULES.read_text())
    text = (make_monitoring.RULES.parent / "compose.yml").read_text()
    for place, accepted in ((tmp_path, True), (tmp_path / "none", False)):
        (tmp_path / "compose.yml").write_text(text.replace("/etc/shardbus", str(place)))
        command = ["promtool", "check", "config", str(tmp_path / "compose.yml")]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert (done.returncode == 0) is accepted, done.stdout + done.stderr
