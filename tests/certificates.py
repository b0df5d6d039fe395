"""Certificates for tests: made by `openssl`, for this machine's loopback address, trusted by no
system. And TLS in front of a server whose build has none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from shardbus.ids import Address


class Certificates:
    """An authority, and a certificate of it for `name`."""

    def __init__(self, folder: Path, name: str = "IP:127.0.0.1") -> None:
        folder.mkdir()
        self._folder, self._authority_key = folder, folder / "ca.key"
        self.authority = folder / "ca.pem"
        # Python 3.13 refuses an authority without the permitted uses of its key.
        purpose = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        ca = (*_NEW, "-x509", "-days", "2", "-subj", "/CN=authority", *purpose)
        _run(*ca, "-keyout", self._authority_key, "-out", self.authority)
        self.certificate, self.key = self.issue("server", name)

    def issue(self, subject: str, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for `name` and of its key."""
        certificate, key, request, extra = (
            self._folder / f"{subject}.{suffix}" for suffix in ("pem", "key", "csr", "ext")
        )
        extra.write_text(f"subjectAltName={name}\nauthorityKeyIdentifier=keyid\n")
        _run(*_NEW, "-subj", f"/CN={subject}", "-keyout", key, "-out", request)
        sign = ("openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", extra)
        signer = ("-CA", self.authority, "-CAkey", self._authority_key)
        _run(*sign, *signer, "-in", request, "-out", certificate)
        return certificate, key


_NEW = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@contextlib.asynccontextmanager
async def tls_front(port: int, certificates: Certificates) -> AsyncIterator[Address]:
    """Accept TLS on a free port, and pass the bytes on to `port`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certificate, certificates.key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, to), copy(behind, writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield Address("127.0.0.1", front.sockets[0].getsockname()[1])
    finally:
        front.close()


def self_signed(folder: Path, name: str = "node") -> tuple[str, str]:
    """Return the files of a certificate for 127.0.0.1 and of its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        [*words.split(), "-keyout", str(key), "-out", str(cert), *subject],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)
