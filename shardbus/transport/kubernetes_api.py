"""Annotates this process's own pod, at the API server of Kubernetes.

One request, a strategic merge patch of the pod's metadata, over TLS: a connection of its own, one
deadline for all of it, and nothing is kept between two requests. The token and the certificates of
the API server are read from the files of the service account each time, because Kubernetes replaces
them while the pod runs.

    answer                               failure
    2xx                                  none
    401, 403, 408, 409, 429, 5xx         may be over soon: a token, a Role, an overload
    another status                       final: the same request fails again
    none, or not in time, or no HTTP     may be over soon

Not here: what is written and when it is repeated (`shells.pod_deletion_cost`).

Source: docs/how-to/deploy.md; B.146.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shardbus.config.settings import KubernetesSettings
from shardbus.config.validation import KUBERNETES_NAME
from shardbus.errors import ConfigError, ShardBusError
from shardbus.ids import Address

if TYPE_CHECKING:
    from socket import socket

ANSWER_WITHIN_S = 5.0
"""From the first byte of the connection to the last of the answer."""
ANSWER_BYTES_MAX = 65_536
FILE_BYTES_MAX = 65_536
TEXT_MAX = 200
BUSY = frozenset({408, 409, 429})


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """Why the pod was not annotated, in one line. `final`: the same request would fail again."""

    text: str
    final: bool = False


class PodApi:
    """The pod of this process.

    Raises:
        ConfigError: the address of the API server or the namespace is not known.
    """

    def __init__(self, settings: KubernetesSettings, environ: Mapping[str, str]) -> None:
        self._account, self._pod = Path(settings.service_account), settings.pod
        self._api = Address.parse(settings.api) if settings.api else _told(environ)
        self._namespace = settings.namespace or self._own_namespace()

    async def annotate(self, name: str, value: str) -> ApiFailure | None:
        """Set one annotation of the pod. Returns None if the API server has done so."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await self._patch({"metadata": {"annotations": {name: value}}})
        except TimeoutError:
            return ApiFailure(f"no answer of {self._api} within {ANSWER_WITHIN_S:g} s")
        except ShardBusError as error:
            return ApiFailure(str(error))
        except ssl.SSLCertVerificationError as error:
            return ApiFailure(
                f"the certificate of {self._api} is not trusted: {error.verify_message}"
            )
        except (EOFError, HTTPException, ValueError, asyncio.LimitOverrunError):
            return ApiFailure(f"the answer of {self._api} is incomplete or is not HTTP")
        except OSError as error:
            return ApiFailure(f"cannot reach {self._api}: {error.strerror or error}")

    async def _patch(self, change: object) -> ApiFailure | None:
        request, trusted = self._request(json.dumps(change).encode()), self._trusted()
        host, port = self._api
        reader, writer = await asyncio.open_connection(
            host, port, ssl=trusted, limit=ANSWER_BYTES_MAX
        )
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            if 200 <= _response(head).status < 300:
                return None
            body = bytearray()
            while len(body) < ANSWER_BYTES_MAX and (read := await reader.read(ANSWER_BYTES_MAX)):
                body += read
            return self._failure(head + body)
        finally:
            writer.transport.abort()

    def _request(self, body: bytes) -> bytes:
        lines = [
            f"PATCH /api/v1/namespaces/{self._namespace}/pods/{self._pod}?fieldManager=shardbus"
            " HTTP/1.1",
            f"Host: {self._api}",
            f"Authorization: Bearer {self._token()}",
            "Content-Type: application/strategic-merge-patch+json",
            f"Content-Length: {len(body)}",
            "Accept: application/json",
            "User-Agent: shardbus",
            "Connection: close",
        ]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii") + body

    def _failure(self, answer: bytes) -> ApiFailure:
        response = _response(answer)
        status, reason = response.status, _message(response)
        pod = f"pod {self._pod!r} of namespace {self._namespace!r}"
        if status == 403:
            return ApiFailure(
                f"the API server forbids it: {reason}; a Role must let the service account of "
                f"this pod patch pods of namespace {self._namespace!r}, as that of "
                "deploy/kubernetes/deletion-cost does"
            )
        if status == 401:
            return ApiFailure(f"the API server does not accept the token of {self._account}")
        if status == 404:
            return ApiFailure(
                f"the API server has no {pod}; set kubernetes.pod from metadata.name", final=True
            )
        final = status < 500 and status not in BUSY
        return ApiFailure(f"the API server answers {status}: {reason}", final)

    def _token(self) -> str:
        token = self._read("token")
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ConfigError(f"{self._account / 'token'} has no token")
        return token

    def _trusted(self) -> ssl.SSLContext:
        authorities = self._read("ca.crt")
        try:
            return ssl.create_default_context(cadata=authorities)
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{self._account / 'ca.crt'} has no certificates") from None

    def _own_namespace(self) -> str:
        found = self._read("namespace")
        if not KUBERNETES_NAME.fullmatch(found):
            raise ConfigError(f"{self._account / 'namespace'} has no namespace: {found[:60]!r}")
        return found

    def _read(self, name: str) -> str:
        """Return the text of one file of the service account.

        Raises:
            ConfigError: there is none that can be read.
        """
        path = self._account / name
        try:
            with path.open("rb") as file:
                return file.read(FILE_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(
                f"{path} cannot be read: {why}",
                hint="set automountServiceAccountToken: true for the pod",
            ) from None


def _told(environ: Mapping[str, str]) -> Address:
    """Return the address of the API server that Kubernetes tells each pod."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{what}", "") for what in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(
            "kubernetes.deletion_costs is set, but this process is in no pod: there is no "
            "KUBERNETES_SERVICE_HOST",
            hint="leave it out, or set kubernetes.api",
        )
    return Address.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class _Received:
    """Bytes that were received, in place of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._data)


def _response(data: bytes) -> HTTPResponse:
    response = HTTPResponse(cast("socket", _Received(data)))
    response.begin()
    return response


def _message(response: HTTPResponse) -> str:
    """Return what the API server says, or the status' own words; one line."""
    try:
        found = json.loads(response.read())["message"]
        text = found if isinstance(found, str) else response.reason
    except (HTTPException, ValueError, LookupError, TypeError):
        text = response.reason
    return " ".join(text.split())[:TEXT_MAX] or "without a reason"
