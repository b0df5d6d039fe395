"""`health`: whether a node is ready for work, asked with as little processor time as possible.

Containers and supervisors run it every few seconds on every node. A Python process with the parser
of command lines and an HTTP client spends most of its time on imports, so the plain command needs
neither: it reads its few options itself and speaks HTTP/1.0 over a socket. All that is not plain
(help, another option, https, an answer that is no health check) is left to `commands`, which does
it in full, with the same output and the same errors.

A test counts the modules that are imported here.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Any, cast

from shardbus_cli import output
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.node_http import TIMEOUT_S, own_token, silent

NODE_URL = "http://127.0.0.1:8558"
PLAIN_URL = re.compile(
    r"(?:http://)?(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+)):(?P<port>\d{1,5})/?"
)
ANSWER_BYTES_MAX = 1 << 20


def plain(arguments: list[str]) -> int | None:
    """Return the exit code of `health` with these arguments; None if it needs the full command."""
    options = _options(arguments)
    place = _place(options[0]) if options is not None else None
    if options is None or place is None:
        return None
    try:
        status, text = _ask(*place, "/readyz", TIMEOUT_S)
        checks = json.loads(text)["checks"]
    except TimeoutError:
        return _failed(options[0], f"no answer within {TIMEOUT_S:g} s")
    except ConnectionRefusedError:
        return _failed(options[0], "nothing listens there")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(checks, dict) or status not in (200, 503):
        return None
    report(text, checks, as_json=options[1])
    return ExitCode.OK if status == 200 else ExitCode.UNHEALTHY


def _failed(url: str, why: str) -> ExitCode:
    output.error(str(silent(url, why)))
    return ExitCode.UNREACHABLE


def report(text: str, checks: dict[str, Any], *, as_json: bool) -> None:
    """Print an answer: its text, or its checks as a table."""
    if as_json:
        output.data(text)
    else:
        output.checks(checks)


def _options(arguments: list[str]) -> tuple[str, bool] | None:
    """Return the URL and `--json`; None if there is any other option."""
    url, as_json = os.environ.get("SHARDBUS_NODE_URL") or NODE_URL, False
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--node" and left:
            url = left.pop(0)
        elif word.startswith("--node="):
            url = word.removeprefix("--node=")
        else:
            return None
    return url, as_json


def _place(url: str) -> tuple[str, int] | None:
    """Return host and port of a URL of the form [http://]HOST:PORT; None of any other."""
    match = PLAIN_URL.fullmatch(url)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return match["six"] or match["name"], int(match["port"])


def read_plain(url: str, path: str, timeout_s: float) -> dict[str, Any]:
    """Return a page of the node at a URL, or at the default one if that is empty.

    Raises:
        OSError: no connection, or no answer in time.
        ValueError: the URL is not plain HTTP, or the answer is no page.
    """
    place = _place(url or os.environ.get("SHARDBUS_NODE_URL") or NODE_URL)
    if place is None:
        raise ValueError(url)
    status, text = _ask(*place, path, timeout_s, own_token())
    page = json.loads(text) if status == 200 else None
    if not isinstance(page, dict):
        raise ValueError(text)
    return page


def _ask(host: str, port: int, path: str, timeout_s: float, token: str = "") -> tuple[int, str]:
    """Return the status and the body of a page.

    Raises:
        OSError: no connection, or no answer in time.
        ValueError: the answer is not HTTP, or too long.
    """
    shown = f"[{host}]" if ":" in host else host
    deadline = time.monotonic() + timeout_s
    rights = f"Authorization: Bearer {token}\r\n" if token else ""
    # As bytes: the codec of international names takes a tenth of the command's processor time.
    place = (cast("str", host.encode("ascii")), port)
    with socket.create_connection(place, timeout_s) as connection:
        request = f"GET {path} HTTP/1.0\r\nHost: {shown}:{port}\r\n{rights}"
        connection.sendall(f"{request}Connection: close\r\n\r\n".encode("ascii"))
        received = bytearray()
        while part := connection.recv(65536):
            received += part
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            if len(received) > ANSWER_BYTES_MAX:
                raise ValueError("too long")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    protocol, status = head.split(b" ", 2)[:2]
    if not protocol.startswith(b"HTTP/1.") or b"\ntransfer-encoding:" in head.lower():
        raise ValueError("not plain HTTP")
    return int(status), body.decode(errors="replace")
