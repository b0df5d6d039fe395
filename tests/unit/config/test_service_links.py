"""Variables that Kubernetes and Docker make are no settings; mistyped settings are refused."""

from __future__ import annotations

import pytest

from shardbus.config.loading import from_environment, load
from shardbus.errors import ConfigError


def kubernetes(
    service: str, ports: dict[str, int], address: str = "10.43.7.9", protocol: str = "tcp"
) -> dict[str, str]:
    """Return the variables of one Service, as the kubelet makes them."""
    name, place = service.upper().replace("-", "_"), f"[{address}]" if ":" in address else address
    first = next(iter(ports.values()))
    made = {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(first),
        f"{name}_PORT": f"{protocol}://{place}:{first}",
    }
    for label, port in ports.items():
        linked = f"{name}_PORT_{port}_{protocol.upper()}"
        made |= {
            f"{name}_SERVICE_PORT_{label.upper().replace('-', '_')}": str(port),
            linked: f"{protocol}://{place}:{port}",
            f"{linked}_PROTO": protocol,
            f"{linked}_PORT": str(port),
            f"{linked}_ADDR": address,
        }
    return made


def docker(alias: str, port: int) -> dict[str, str]:
    """Return the variables of one link, as Docker makes them."""
    url, linked = f"tcp://172.17.0.5:{port}", f"{alias}_PORT_{port}_TCP"
    return {
        f"{alias}_NAME": "/node/redis",
        f"{alias}_PORT": url,
        linked: url,
        f"{linked}_ADDR": "172.17.0.5",
        f"{linked}_PORT": str(port),
        f"{linked}_PROTO": "tcp",
        f"{linked}_START": url,
        f"{linked}_END": url,
        f"{linked}_PORT_START": str(port),
        f"{linked}_PORT_END": str(port),
        f"{alias}_ENV_REDIS_VERSION": "7.2.4",
        f"{alias}_ENV_PATH": "/usr/bin:/bin",
    }


@pytest.mark.parametrize(
    "links",
    [
        kubernetes("shardbus", {"messages": 7355, "http": 8558}),
        kubernetes("shardbus-http", {"web-ui": 8080}),
        kubernetes("shardbus-node", {"port": 7355}),
        kubernetes("shardbus-redis", {"redis": 6379}, address="fd00:10:96::1"),
        kubernetes("shardbus-dns", {"dns": 53}, protocol="udp"),
        kubernetes("shardbus-m3ua", {"m3ua": 2905}, protocol="sctp"),
        docker("SHARDBUS_REDIS", 6379),
        docker("SHARDBUS_1", 7355),
    ],
)
def test_what_kubernetes_and_docker_make_is_no_setting(links: dict[str, str]) -> None:
    assert from_environment(links) == []
    port = {"SHARDBUS_NODE__PORT": "7400"}
    assert load(from_environment({**links, **port})).node.port == 7400


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHARDBUS_NODE_PORT", "7355"),
        ("SHARDBUS_HTTP_PORT", "8558"),
        ("SHARDBUS_NODE__PROT", "tcp://10.43.7.9:7355"),
        ("SHARDBUS_NODE_SEEDS", "10.43.7.9:7355"),
        ("SHARDBUS_STORE_URL", "redis://10.43.7.9:6379/0"),
        ("SHARDBUS_PORT", "tcp://10.43.7.9"),
        ("SHARDBUS_SERVICE_HOST", "not an address"),
        ("SHARDBUS_NODE_NAME", "node-7"),
        ("SHARDBUS_ENV_PRODUCTION", "1"),
    ],
)
def test_a_mistyped_setting_is_refused(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown variable '{variable}'"):
        from_environment({variable: value})
