"""The flags of `node start` that set a setting.

Their help names the default and the variable of the setting. A flag is parsed as its setting, so
`--port x` gets the same error as `node.port = 'x'` in a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shardbus.config.loading import Layer

FLAGS = {
    "--host": "node.host",
    "--port": "node.port",
    "--gossip-port": "node.gossip_port",
    "--http-port": "http.port",
    "--advertise": "node.advertise",
    "--advertise-gossip": "node.advertise_gossip",
    "--seed": "node.seeds",
    "--role": "node.roles",
    "--proxy": "node.proxies",
    "--store": "store.url",
    "--log-level": "log.level",
    "--log-format": "log.format",
}
"""The setting of each flag."""


def _flag(name: str, metavar: str, meaning: str, default: str) -> Any:
    variable = "SHARDBUS_" + FLAGS[name].upper().replace(".", "__")
    return typer.Option(
        name, metavar=metavar, help=f"{meaning} [default: {default}; env: {variable}]"
    )


Host = Annotated[str | None, _flag("--host", "HOST", "Interface to listen on", "127.0.0.1")]
Port = Annotated[str | None, _flag("--port", "PORT", "Port of messages", "7355")]
GossipPort = Annotated[str | None, _flag("--gossip-port", "PORT", "Port of gossip", "port + 1")]
HttpPort = Annotated[str | None, _flag("--http-port", "PORT", "Port of HTTP", "8558")]
Advertise = Annotated[
    str | None, _flag("--advertise", "HOST[:PORT]", "Address for other nodes", "host and port")
]
AdvertiseGossip = Annotated[
    str | None,
    _flag("--advertise-gossip", "HOST[:PORT]", "Address of gossip for other nodes", "as bound"),
]
Seeds = Annotated[
    list[str] | None, _flag("--seed", "HOST:PORT", "Node to join; may be repeated", "none")
]
Roles = Annotated[
    list[str] | None, _flag("--role", "ROLE", "Role of this node; may be repeated", "none")
]
Proxies = Annotated[
    list[str] | None, _flag("--proxy", "TYPE", "Only send to this type; repeatable", "none")
]
Store = Annotated[str | None, _flag("--store", "URL", "State store", "an SQLite file of this user")]
LogLevel = Annotated[
    str | None, _flag("--log-level", "LEVEL", "debug, info, warning or error", "info")
]
LogFormat = Annotated[str | None, _flag("--log-format", "FORMAT", "auto, pretty or json", "auto")]


def layers(flags: dict[str, Any]) -> list[Layer]:
    """Return one layer per given flag, with the flag as its origin."""
    from shardbus.config.loading import nested_at

    return [(name, nested_at(FLAGS[name], value)) for name, value in flags.items() if value]


def words(flags: dict[str, Any]) -> list[str]:
    """Return the flags as words of a command line."""
    arguments = []
    for name, value in flags.items():
        for entry in value if isinstance(value, list) else [value]:
            arguments += [name, str(entry)] if entry else []
    return arguments
