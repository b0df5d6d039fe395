"""Service links: variables that Kubernetes and Docker make, which look like settings by their name.

Kubernetes gives each pod variables for every Service of its namespace, unless the pod has
`enableServiceLinks: false`; Docker does the same for a container with `--link`. For a Service
`shardbus-http` with a port 8080 they are:

    SHARDBUS_HTTP_SERVICE_HOST           10.43.7.9
    SHARDBUS_HTTP_SERVICE_PORT           8080          and one with the name of each named port
    SHARDBUS_HTTP_PORT                   tcp://10.43.7.9:8080
    SHARDBUS_HTTP_PORT_8080_TCP          tcp://10.43.7.9:8080
    SHARDBUS_HTTP_PORT_8080_TCP_PROTO    tcp
    SHARDBUS_HTTP_PORT_8080_TCP_PORT     8080
    SHARDBUS_HTTP_PORT_8080_TCP_ADDR     10.43.7.9
    SHARDBUS_REDIS_NAME                  /node/redis   Docker, with SHARDBUS_REDIS_ENV_... for all
                                                       variables of the other container

Name and value must both have the form: `SHARDBUS_NODE_PORT=7355` is a mistyped setting.

Source: the documentation of Kubernetes, "Accessing the Service"; Docker's documentation, "Legacy
container links".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PORT = r"PORT_\d+_(?:TCP|UDP|SCTP)"
_ADDRESS = r"[0-9A-Fa-f:.]+"
_NUMBER = r"\d{1,5}"
_URL = r"(?:tcp|udp|sctp)://[^/\s]+:\d{1,5}"
_LINKED = r"/[^/]+/[^/]+"
FORMS = tuple(
    (re.compile(rf"(?:\w+_)?{name}"), re.compile(value))
    for name, value in (
        ("SERVICE_HOST", _ADDRESS),
        (r"SERVICE_PORT(?:_\w+)?", _NUMBER),
        (f"(?:PORT|{_PORT}(?:_START|_END)?)", _URL),
        (f"{_PORT}_PROTO", "tcp|udp|sctp"),
        (f"{_PORT}_PORT(?:_START|_END)?", _NUMBER),
        (f"{_PORT}_ADDR", _ADDRESS),
        ("NAME", _LINKED),
    )
)
"""The end of a variable's name, and its value."""


def is_service_link(variable: str, environ: Mapping[str, str]) -> bool:
    """True if the name and the value of a variable have the form of a service link."""
    value = environ[variable]
    if any(name.fullmatch(variable) and form.fullmatch(value) for name, form in FORMS):
        return True
    linked, mark, _ = variable.partition("_ENV_")
    return bool(mark and re.fullmatch(_LINKED, environ.get(f"{linked}_NAME", "")))
