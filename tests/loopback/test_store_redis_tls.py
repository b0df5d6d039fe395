"""The Redis store over TLS: a server of an authority of one's own, and one that is not trusted."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.store.opening import open_store
from shardbus.testing.store_suite import save
from tests.redis_server import RedisServer


class Certificates:
    """An authority, and a certificate of it for `name`."""

    def __init__(self, folder: Path, name: str = "IP:127.0.0.1") -> None:
        folder.mkdir()
        self.authority, self.certificate, self.key = (
            folder / "ca.pem",
            folder / "server.pem",
            folder / "server.key",
        )
        authority_key, request, extra = folder / "ca.key", folder / "csr", folder / "ext"
        extra.write_text(f"subjectAltName={name}\nauthorityKeyIdentifier=keyid\n")
        new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        # Python 3.13 refuses an authority that does not say what its key is for.
        purpose = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        ca = (*new, "-x509", "-days", "2", "-subj", "/CN=authority", *purpose)
        self._run(*ca, "-keyout", authority_key, "-out", self.authority)
        self._run(*new, "-subj", "/CN=store", "-keyout", self.key, "-out", request)
        sign = ("openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", extra)
        signer = ("-CA", self.authority, "-CAkey", authority_key)
        self._run(*sign, *signer, "-in", request, "-out", self.certificate)

    def _run(self, *command: object) -> None:
        subprocess.run([str(word) for word in command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
async def server(redis_server: RedisServer, certificates: Certificates) -> AsyncIterator[Address]:
    """TLS in front of the session's server: not every build of a server has it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certificate, certificates.key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(copy(reader, to), copy(behind, writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield Address("127.0.0.1", front.sockets[0].getsockname()[1])
    front.close()


async def test_a_server_of_ones_own_authority_is_used(
    server: Address, certificates: Certificates, redis_url: str
) -> None:
    database = redis_url.rpartition("/")[2]
    url = f"rediss://{server}/{database}?ssl_ca_certs={certificates.authority}"
    store = open_store(url, cluster="shop", timeout=10.0)
    await store.start()
    assert await store.save_states([save("a", 1, b"x", 1)]) == [None]
    await store.close()


@pytest.mark.parametrize("authority", ["another", "none"])
async def test_a_server_that_is_not_trusted_is_refused_with_the_remedy(
    server: Address, tmp_path: Path, authority: str
) -> None:
    query = ""
    if authority == "another":
        query = f"?ssl_ca_certs={Certificates(tmp_path / 'theirs').authority}"
    store = open_store(f"rediss://{server}/0{query}", cluster="shop", timeout=10.0)
    with pytest.raises(StoreUnavailable, match=r"certificate verify failed.*; check ssl_ca_certs"):
        await store.start()


async def test_a_certificate_of_another_host_is_refused(
    tmp_path: Path, server: Address, certificates: Certificates
) -> None:
    """The certificate is for 127.0.0.1, and the URL says localhost."""
    url = f"rediss://localhost:{server.port}/0?ssl_ca_certs={certificates.authority}"
    store = open_store(url, cluster="shop", timeout=10.0)
    with pytest.raises(StoreUnavailable, match=r"; check ssl_ca_certs, and the host name"):
        await store.start()


async def test_a_server_without_tls_is_refused(redis_url: str) -> None:
    url = redis_url.replace("redis://", "rediss://")
    store = open_store(url, cluster="shop", timeout=10.0)
    with pytest.raises(StoreUnavailable, match="check"):
        await store.start()
