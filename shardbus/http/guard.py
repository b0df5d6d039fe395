"""Access to the pages.

On the loopback, the default, every client that can connect may read. Elsewhere every page but the
probes needs a bearer token, of an operator (`http.token`) or of a reader (`http.reader_token`), if
one is set; without `security.insecure` a node starts there only with one. A reader's token is also
required on the loopback. Tokens are compared in constant time.

These rules keep out web pages that the operator visits, and readers:

- **Host check.** A page whose own name was rebound to this node's address sends that name. Bound to
  the loopback, the node answers only to a loopback name in Host; elsewhere to an address, a
  loopback name, and the names under which it is bound and advertised. `http.allowed_hosts` adds
  names. Off the loopback, a request with a known token is answered under any name: a rebound page
  has none.
- **Origin check.** A browser names the origin of a request in `Sec-Fetch-Site` or `Origin`. A
  request for another origin's page, such as an image tag, is refused before the page does any work.
- **The page** `/ui` is files without data (`page`). It needs no token: it asks the person for one.
  A link on another site may open it, but nothing else there may use it.
- **Stored states** are read with the operator's token, also on the loopback.
- **Writes** need `http.write` and the operator's token. A page cannot send an Authorization header
  across origins without a preflight request, and no page here allows it.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardbus.config.settings import HttpSettings
from shardbus.config.validation import check_token, is_address, is_loopback
from shardbus.errors import ConfigError
from shardbus.http.dashboard import PAGE, is_page
from shardbus.http.errors import Forbidden, error
from shardbus.transport.secret_file import read_private

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for requests of this origin's pages, and of a person."""
PROBES = ("/livez", "/readyz", "/startupz")


class Guard:
    """Refuses foreign Host headers and readers without a token, and adds the safe headers to every
    answer. `advertised`: the host under which other nodes reach this one."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, advertised: str = "") -> None:
        self.app, self.settings = app, settings
        self.loopback_only = is_loopback(settings.host)
        self.any_host = "*" in settings.allowed_hosts
        hosts = () if self.loopback_only else (settings.host, advertised)
        self.hosts = {_hostname(name) for name in (*settings.allowed_hosts, *hosts) if name}
        self.reading_needs_token = reading_needs_token(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = list(message.get("headers", ()))
                names = {name for name, _ in sent}  # the page has its own policy
                message["headers"] = [*sent, *(pair for pair in HEADERS if pair[0] not in names)]
            await send(message)

        answer = self.app
        if scope["type"] == "http" and not self._is_own_host(scope):
            answer = error(
                403,
                "foreign_host",
                "this node does not answer to the name in the Host header",
                "ask for its address, or add the name to http.allowed_hosts",
            )
        elif scope["type"] == "http" and _is_cross_site(scope) and not _follows_link(scope):
            answer = error(
                403,
                "cross_site",
                "this node answers no request that a page of another origin makes",
                "open the page by itself, or send the request without Sec-Fetch-Site and Origin",
            )
        elif scope["type"] == "http" and self.reading_needs_token and not self._may_read(scope):
            answer = error(
                401,
                "unauthorized",
                "this node's pages need a bearer token",
                "send http.reader_token or http.token, as in SHARDBUS_NODE_TOKEN for the shardbus "
                "command",
            )
            answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send_with_headers)

    def _is_own_host(self, scope: Scope) -> bool:
        """True if every Host header names this node, or the request has a known token. A request
        of HTTP/1.0 may have no Host."""
        hosts = [v.decode("latin-1") for name, v in scope["headers"] if name == b"host"]
        return (
            self.any_host
            or all(self._is_own(_hostname(host)) for host in hosts)
            or (not self.loopback_only and self._has_token(scope))
        )

    def _is_own(self, host: str) -> bool:
        if is_loopback(host) or host in self.hosts:
            return True
        return not self.loopback_only and is_address(host)

    def _may_read(self, scope: Scope) -> bool:
        """True if it is a probe or the page without data, or the request has a known token."""
        return scope["path"] in PROBES or is_page(scope["path"]) or self._has_token(scope)

    def _has_token(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and bearer(sent[0].decode("latin-1"), self.settings) is not None


def _is_cross_site(scope: Scope) -> bool:
    """True if a browser says that a page of another origin makes this request."""
    values: dict[bytes, list[str]] = {b"sec-fetch-site": [], b"origin": [], b"host": []}
    for name, value in scope["headers"]:
        if name in values:
            values[name].append(value.decode("latin-1").lower())
    if any(site not in OWN_SITES for site in values[b"sec-fetch-site"]):
        return True
    this_origin = f"{scope.get('scheme', 'http')}://{values[b'host'][0]}" if values[b"host"] else ""
    return any(origin != this_origin for origin in values[b"origin"])


def _follows_link(scope: Scope) -> bool:
    """True if a browser opens the page because a person followed a link elsewhere. The page itself
    has no data, and no frame may hold it."""
    headers = dict(scope["headers"])
    opens = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return scope["path"] == PAGE and opens == (b"navigate", b"document")


def _hostname(host: str) -> str:
    """The Host header without its port, as names are compared."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower().removesuffix(".")


def with_tokens(settings: HttpSettings) -> HttpSettings:
    """Return the settings with the tokens that their files hold. Called once, before it listens.

    Raises:
        ConfigError: a file cannot be read, others may read it, or it has no good token.
    """
    token = settings.token or _read("the operator's token", settings.token_file)
    reader = settings.reader_token or _read("the reader's token", settings.reader_token_file)
    if token and token == reader:
        raise ConfigError(
            "operator and reader have one token, so every reader may write",
            hint="give readers a token of their own",
        )
    return replace(settings, token=token, reader_token=reader)


def _read(what: str, file: str) -> str:
    if not file:
        return ""
    token = read_private(Path(file), what).strip()
    check_token(f"{file!r}, the file with {what},", token)
    return token


def reading_needs_token(settings: HttpSettings) -> bool:
    """True if every page but the probes needs a token."""
    return bool(settings.reader_token) or bool(settings.token and not is_loopback(settings.host))


def bearer(authorization: str, settings: HttpSettings) -> str | None:
    """Return the role of an Authorization header: `operator`, `reader`, or None for no role. Every
    token is compared, in constant time."""
    scheme, _, token = authorization.partition(" ")
    sent = token.strip().encode("latin-1", "replace")
    role = None
    for name, expected in (("reader", settings.reader_token), ("operator", settings.token)):
        if hmac.compare_digest(sent, expected.encode()) and expected:
            role = name
    return role if scheme.lower() == "bearer" else None


def check_write(request: Request, settings: HttpSettings) -> None:
    """Return if the request may write.

    Raises:
        Forbidden: writes are off, or the token is missing or wrong.
    """
    if not settings.write or not settings.token:
        raise Forbidden(
            "this node's HTTP is read-only", hint="start it with http.write = true and http.token"
        )
    check_operator(request, settings, "a reader may not write")


def check_operator(request: Request, settings: HttpSettings, why: str) -> None:
    """Return if the request has the operator's token. `why` a reader's token is refused.

    Raises:
        Forbidden: the token is missing or wrong, or the node has none.
    """
    if not settings.token:
        raise Forbidden(f"{why}: this node has no token for them", hint="start it with http.token")
    role = bearer(request.headers.get("authorization", ""), settings)
    if role == "reader":
        raise Forbidden(why, hint="send http.token, the operator's token")
    if role != "operator":
        raise Forbidden(
            "the bearer token is missing or wrong",
            hint="send the node's http.token, as in SHARDBUS_NODE_TOKEN for the shardbus command",
        )
