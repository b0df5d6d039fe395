"""A web server inside the node's event loop.

uvicorn does HTTP. It runs with these differences: it does not touch the process's signals (it would
raise them again when it stops); the port is bound here, so that a taken port is one clear error;
`start` returns when connections are accepted; `connections` bounds connections; and a request that
the end of the server cuts off is answered.

The application of an embedded node may run under uvicorn, too. So nothing here changes a level or a
handler of uvicorn's loggers: lines that clients of the node cause go to the node's own log
(`connections`), and lines of this server about its start and end are left out, here alone.

Source: docs/how-to/web.md.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.http.connections import BoundedConnections
from shardbus.http.errors import error
from shardbus.ids import Address
from shardbus.task_set import watch

log = GuardedLog("shardbus.http")

BACKLOG = 512
SHUTDOWN_GRACE_S = 2
REASONS = {
    errno.EADDRINUSE: "it is taken",
    errno.EACCES: "this user may not listen there",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
}


_OF_NODE: ContextVar[bool] = ContextVar("shardbus-http", default=False)
"""True in the task of a node's server."""


class _SteadyLog(logging.Filter):
    """Leaves out the lines of a node's server about its start and its end."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or not _OF_NODE.get()


_steady_log = _SteadyLog()


class _Config(uvicorn.Config):
    """The settings of a server beside another one of the same process."""

    def configure_logging(self) -> None:
        """Leave uvicorn's loggers as they are."""


class _Embedded(uvicorn.Server):
    """uvicorn without signals, and with an event that is set when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()


def answering_when_cut(app: ASGIApp) -> ASGIApp:
    """Return the application, which answers 503 to a request that is cancelled before its answer
    has begun. uvicorn cancels open requests `SHUTDOWN_GRACE_S` after its end began."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, send_on)
        except asyncio.CancelledError:
            log.warning("cut off a request for %.100s: this node ends", scope.get("path", ""))
            if not begun:
                response = error(503, "ending", "this node ends", "ask another node")
                await response(scope, receive, send)

    return answer


class Server:
    """One application on one port. Started once, stopped once. `tls`: the files of the certificate
    and of its key, for HTTPS."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, tls: tuple[str, str] | None = None
    ) -> None:
        self.host, self._tls = host, tls
        self.port = port
        """The port to bind; after `start` the bound one."""
        self._app = app
        self._server: _Embedded | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and accept connections.

        Raises:
            ConfigError: the port cannot be bound, or the certificate cannot be used. No socket
                stays open.
        """
        config = self._config()
        listener = await _bind(self.host, self.port)
        self.port = listener.getsockname()[1]
        logging.getLogger("uvicorn.error").addFilter(_steady_log)  # once, however often
        self._server = _Embedded(config)
        self._task = watch(
            asyncio.create_task(_serve(self._server, listener), name="shardbus-http")
        )
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            listening.cancel()
            await self._task

    def _config(self) -> uvicorn.Config:
        cert, key = self._tls or (None, None)
        config = _Config(
            answering_when_cut(self._app),
            ssl_certfile=cert,
            ssl_keyfile=key,
            http=BoundedConnections,
            ws="none",
            lifespan="off",
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        )
        try:
            config.load()
        except OSError as failed:  # ssl.SSLError is one
            raise ConfigError(
                f"HTTPS cannot use {cert!r} and {key!r}: {failed.strerror or failed}",
                hint="http.tls_cert is a certificate chain, http.tls_key its private key, in PEM",
            ) from None
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        return config

    async def stop(self) -> None:
        """Close the port; requests under way have `SHUTDOWN_GRACE_S`. No effect before `start`."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._task])


async def _serve(server: _Embedded, listener: socket.socket) -> None:
    _OF_NODE.set(True)
    await server.serve([listener])


def serve(app: ASGIApp, host: str, port: int, tls: tuple[str, str] | None = None) -> Server:
    """A server for `app`, to be started with `start`. Port 0 binds any free port. `tls`: the files
    of the certificate and of its key, for HTTPS."""
    return Server(app, host, port, tls)


def tls_files(settings: HttpSettings) -> tuple[str, str] | None:
    """Return the files of the certificate and of its key; None for plain HTTP."""
    return (settings.tls_cert, settings.tls_key) if settings.tls_cert else None


def scheme(settings: HttpSettings) -> str:
    """Return the scheme of the node's URLs."""
    return "https" if settings.tls_cert else "http"


async def _bind(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except OSError:
        raise ConfigError(f"http.host {host!r} cannot be resolved", hint="use an address") from None
    family, _, _, _, address = addresses[0]
    # asyncio sets TCP_NODELAY only where the protocol is named. Without it the second part of an
    # answer waits 40 ms for the acknowledgement of the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as failed:
        listener.close()
        reason = REASONS.get(failed.errno or 0, "the system refuses it")
        raise ConfigError(
            f"cannot listen for HTTP on {Address(host, port)}: {reason}",
            hint="choose another with --http-port (http.port) or http.host",
        ) from None
    return listener
