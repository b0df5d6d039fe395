"""An API server of Kubernetes that knows the metadata of pods and ReplicaSets: TLS on the loopback,
tokens, answers that a test orders, and the files that a pod has of its service account."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path
from typing import Any

from tests.certificates import Certificates

REASONS = {200: "OK", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict"}
FORBIDDEN = (
    'pods "a" is forbidden: User "system:serviceaccount:shop:shardbus" cannot patch resource '
    '"pods" in API group "" in the namespace "shop"'
)
MESSAGES = {403: FORBIDDEN, 409: "the object has been modified"}
SILENCE = 0
"""In place of a status: no answer at all."""
NO_HTTP, CARRY_OUT = -1, -2
DRIP = -3
"""In place of a status: a head that goes on for ever, a few bytes at a time."""
DRIP_S = 0.02


class KubernetesApi:
    """Serves one namespace. `orders` has statuses that it answers with, one after the other, before
    it does its work; `token` is the only accepted token."""

    def __init__(self, folder: Path, namespace: str = "shop") -> None:
        self.certificates = Certificates(folder / "api")
        self.namespace, self.token = namespace, "first.token"
        self.annotations: dict[str, dict[str, str]] = {}
        self.owners: dict[str, list[dict[str, Any]]] = {}
        self.replicas: dict[str, dict[str, str]] = {}
        """The annotations of each ReplicaSet."""
        self.orders: list[int] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.cut_off = 0
        """Answers that the client did not wait for."""
        self.address = ""
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "namespace").write_text(namespace)
        (self.account / "ca.crt").write_bytes(self.certificates.authority.read_bytes())
        self.rotate(self.token)

    def rotate(self, token: str) -> None:
        """Accept another token, and write it into the pod's file."""
        self.token = token
        (self.account / "token").write_text(token)

    def add(self, pod: str, revision: str = "1") -> None:
        """Let there be a pod of a Deployment."""
        self.annotations[pod] = {}
        self.owners[pod] = [{"kind": "ReplicaSet", "name": f"shop-{revision}", "controller": True}]
        self.replicas[f"shop-{revision}"] = {"deployment.kubernetes.io/revision": revision}

    async def __aenter__(self) -> KubernetesApi:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificates.certificate, self.certificates.key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._ends = asyncio.Event()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ends.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = int(headers.get("content-length", "0"))
            body = json.loads(await reader.readexactly(length)) if length else None
            self.requests.append((first, headers, body))
            answer: dict[str, Any] = {}
            status = self.orders.pop(0) if self.orders else CARRY_OUT
            if status == CARRY_OUT:
                status, answer = self._carry_out(first, headers, body)
            if status == SILENCE:
                await self._ends.wait()
            elif status == DRIP:
                await self._drip(writer)
            elif status == NO_HTTP:
                writer.write(b"220 mail.example ESMTP\r\n\r\n")
            else:
                writer.write(self._answer(status, answer))
            await writer.drain()
        writer.close()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self._ends.is_set():
            writer.write(b"x")
            try:
                await writer.drain()
            except OSError:
                self.cut_off += 1
                raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), DRIP_S)

    def _carry_out(
        self, first: str, headers: dict[str, str], body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Return the status of the answer, and the metadata of the object."""
        if headers["authorization"] != f"bearer {self.token}":
            return 401, {}
        method, path, _ = first.split(" ")
        place = f"/api/v1/namespaces/{self.namespace}/pods/"
        sets = f"/apis/apps/v1/namespaces/{self.namespace}/replicasets/"
        name = path.partition("?")[0].rpartition("/")[2]
        if method == "GET" and path == sets + name and name in self.replicas:
            return 200, {"name": name, "annotations": self.replicas[name]}
        if not path.startswith(place + name) or name not in self.annotations:
            return 404, {}
        if method == "PATCH":
            if headers["content-type"] != "application/strategic-merge-patch+json":
                return 415, {}
            self.annotations[name] |= body["metadata"]["annotations"]
        owners = self.owners[name]
        return 200, {"name": name, "ownerReferences": owners, "annotations": self.annotations[name]}

    @staticmethod
    def _answer(status: int, metadata: dict[str, Any]) -> bytes:
        """In chunks, as Go's server answers with a body of unknown length."""
        failed = {"kind": "Status", "message": MESSAGES.get(status, "busy"), "code": status}
        body = {"kind": "PartialObjectMetadata", "metadata": metadata}
        text = json.dumps(body if status == 200 else failed).encode()
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Reason')}\r\n"
        headers = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        return f"{head}{headers}{len(text):x}\r\n".encode() + text + b"\r\n0\r\n\r\n"
