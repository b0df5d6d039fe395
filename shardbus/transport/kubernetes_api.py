"""Asks the API server of Kubernetes about this process's own pod, and annotates it.

    annotate    a strategic merge patch of the pod's annotations
    revision    the pod's owner is a ReplicaSet, which has the revision of the Deployment

Each request runs in a worker thread, with `http.client` over a TLS connection of its own, and has
one deadline from the connection to the last byte. At the deadline the connection is shut down, so
that the thread ends too. Nothing is kept between two requests. The token and the
certificates of the API server are read from the files of the service account each time, because
Kubernetes replaces them while the pod runs.

    answer                               failure
    2xx                                  none
    401, 403, 408, 409, 429, 5xx         may be over soon: a token, a Role, an overload
    another status                       final: the same request fails again
    none, or not in time, or no HTTP     may be over soon

Not here: the contents of a write and its repetition (`shells.pod_deletion_cost`,
`node.app_version`).

Source: docs/how-to/deploy.md; B.146, B.147.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Event
from typing import Any

import msgspec

from shardbus.config.settings import KubernetesSettings
from shardbus.config.validation import KUBERNETES_NAME
from shardbus.errors import ConfigError, ShardBusError
from shardbus.ids import Address

ANSWER_WITHIN_S = 5.0
"""From the first byte of the connection to the last of the answer."""
ANSWER_BYTES_MAX, FILE_BYTES_MAX = 2**20, 65_536
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
HEADERS = {
    "Accept": METADATA_ONLY,
    "Content-Type": "application/strategic-merge-patch+json",
    "User-Agent": "shardbus",
    "Connection": "close",
}
REVISION = "deployment.kubernetes.io/revision"
TEXT_MAX = 200
BUSY = frozenset({408, 409, 429})


class ApiFailure(msgspec.Struct, frozen=True):
    """Why the pod was not annotated, in one line. `final`: the same request would fail again."""

    text: str
    final: bool = False


class PodApi:
    """The pod of this process.

    Raises:
        ConfigError: the address of the API server or the namespace is not known.
    """

    def __init__(self, settings: KubernetesSettings, environ: Mapping[str, str]) -> None:
        self._account, self._name = Path(settings.service_account), settings.pod
        self._api = Address.parse(settings.api) if settings.api else _api_of_pod(environ)
        self._namespace = settings.namespace or self._own_namespace()
        self._pod = f"/api/v1/namespaces/{self._namespace}/pods/{self._name}"

    async def annotate(self, name: str, value: str) -> ApiFailure | None:
        """Set one annotation of the pod. Returns None if the API server has done so."""
        change = {"metadata": {"annotations": {name: value}}}
        answer = await self._ask("PATCH", f"{self._pod}?fieldManager=shardbus", change)
        return answer if isinstance(answer, ApiFailure) else None

    async def revision(self) -> str | ApiFailure:
        """Return the revision of the Deployment that has made the pod."""
        pod = await self._ask("GET", self._pod)
        if isinstance(pod, ApiFailure):
            return pod
        owners = [row for row in _list(pod, "ownerReferences") if row.get("controller")]
        kind, name = (str(owners[0].get(key)) for key in ("kind", "name")) if owners else ("", "")
        if kind != "ReplicaSet" or not KUBERNETES_NAME.fullmatch(name):
            owner = f"a {kind}" if kind else "nothing"
            return ApiFailure(f"pod {self._name!r} belongs to {owner}, not to a Deployment", True)
        path = f"/apis/apps/v1/namespaces/{self._namespace}/replicasets/{name}"
        replicas = await self._ask("GET", path)
        if isinstance(replicas, ApiFailure):
            return replicas
        annotations = replicas.get("annotations")
        revision = annotations.get(REVISION) if isinstance(annotations, dict) else None
        if not isinstance(revision, str) or not re.fullmatch(r"[0-9]{1,18}", revision):
            return ApiFailure(f"ReplicaSet {name!r} has no revision of a Deployment", True)
        return revision

    async def _ask(
        self, method: str, path: str, change: object = None
    ) -> dict[str, Any] | ApiFailure:
        """Return the metadata of the object that the API server answers with."""
        try:
            response, body = await self._exchange(method, path, change)
            if not 200 <= response.status < 300:
                return self._failure(response, body, f"{method.lower()} {path.split('/')[-2]}")
            metadata = json.loads(body)["metadata"]
            return metadata if isinstance(metadata, dict) else {}
        except TimeoutError:
            return ApiFailure(f"no answer of {self._api} within {ANSWER_WITHIN_S:g} s")
        except ShardBusError as error:
            return ApiFailure(str(error))
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message
            return ApiFailure(f"the certificate of {self._api} is not trusted: {why}")
        except (HTTPException, ValueError, LookupError, TypeError):
            return ApiFailure(f"the answer of {self._api} is incomplete or is not HTTP")
        except OSError as error:
            return ApiFailure(f"cannot reach {self._api}: {error.strerror or error}")

    async def _exchange(self, method: str, path: str, change: object) -> tuple[HTTPResponse, bytes]:
        """Return the answer, and of its body at most `ANSWER_BYTES_MAX`."""
        connection = HTTPSConnection(*self._api, timeout=ANSWER_WITHIN_S, context=self._trusted())
        headers = {"Authorization": f"Bearer {self._token()}", **HEADERS}
        ended = Event()

        def exchange() -> tuple[HTTPResponse, bytes]:
            with closing(connection):
                connection.connect()
                if ended.is_set():
                    raise TimeoutError
                body = None if change is None else json.dumps(change)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                return response, response.read(ANSWER_BYTES_MAX)

        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await asyncio.to_thread(exchange)
        finally:
            ended.set()
            if (link := connection.sock) is not None:
                with suppress(OSError):
                    socket.shutdown(link, SHUT_RDWR)

    def _failure(self, response: HTTPResponse, body: bytes, request: str) -> ApiFailure:
        status, reason = response.status, _message(response, body)
        if status == 403:
            return ApiFailure(
                f"the API server forbids it: {reason}; a Role must let the service account of "
                f"this pod {request} in namespace {self._namespace!r}, as those in "
                "deploy/kubernetes do"
            )
        if status == 401:
            return ApiFailure(f"the API server does not accept the token of {self._account}")
        if status == 404:
            place = f"pod {self._name!r} of namespace {self._namespace!r}"
            return ApiFailure(
                f"the API server does not find {place}: {reason}; set kubernetes.pod from "
                "metadata.name",
                final=True,
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
        namespace = self._read("namespace")
        if not KUBERNETES_NAME.fullmatch(namespace):
            raise ConfigError(f"{self._account / 'namespace'} has no namespace: {namespace[:60]!r}")
        return namespace

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


def _api_of_pod(environ: Mapping[str, str]) -> Address:
    """Return the address of the API server that Kubernetes tells each pod."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{what}", "") for what in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(
            "the section kubernetes of the settings asks for the API server, but this process is "
            "in no pod: there is no KUBERNETES_SERVICE_HOST",
            hint="leave deletion_costs and revision out, or set kubernetes.api",
        )
    return Address.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _list(metadata: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = metadata.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _message(response: HTTPResponse, body: bytes) -> str:
    """Return the reason in the API server's words, or in HTTP's; one line."""
    text = response.reason
    with suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(body)["message"])
    return " ".join(text.split())[:TEXT_MAX] or "without a reason"
