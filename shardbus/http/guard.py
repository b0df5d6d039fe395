"""Access to the pages.

Every client that can connect may read; the default is the loopback. Two rules keep out web pages
that the operator visits:

- **Host check.** Bound to the loopback, the node answers only requests whose Host is a loopback
  name. A page whose own name was rebound to 127.0.0.1 sends that name and is refused.
- **Writes** need `http.write` and the bearer token, compared in constant time. A page cannot send
  an Authorization header across origins without a preflight request, and no page here allows it.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardbus.config.settings import HttpSettings
from shardbus.config.validation import is_loopback
from shardbus.http.errors import Forbidden, error

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class Guard:
    """Refuses foreign Host headers on the loopback, and adds the safe headers to every answer."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self.app = app
        self.loopback_only = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        answer = self.app
        if scope["type"] == "http" and self.loopback_only and not _is_local(scope):
            answer = error(
                403,
                "foreign_host",
                "this node answers only to a loopback name in the Host header",
                "ask 127.0.0.1 or localhost, or bind http.host to another interface",
            )
        await answer(scope, receive, send_with_headers)


def _is_local(scope: Scope) -> bool:
    """True if every Host header names the loopback. A request of HTTP/1.0 may have none."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(is_loopback(_hostname(host)) for host in hosts)


def _hostname(host: str) -> str:
    """The Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def check_write(request: Request, settings: HttpSettings) -> None:
    """Return if the request may write.

    Raises:
        Forbidden: writes are off, or the token is missing or wrong.
    """
    if not settings.write or not settings.token:
        raise Forbidden(
            "this node's HTTP is read-only", hint="start it with http.write = true and http.token"
        )
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    expected = settings.token.encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), expected):
        raise Forbidden(
            "the bearer token is missing or wrong",
            hint="send the node's http.token, as in SHARDBUS_NODE_TOKEN for the shardbus command",
        )
