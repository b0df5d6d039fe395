"""The Redis store over TLS: a server of an authority of one's own, and one that is not trusted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.store.opening import open_store
from shardbus.testing.store_suite import save
from tests.certificates import Certificates, tls_front
from tests.redis_server import RedisServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
async def server(redis_server: RedisServer, certificates: Certificates) -> AsyncIterator[Address]:
    """TLS in front of the session's server: not every build of a server has it."""
    async with tls_front(redis_server.port, certificates) as front:
        yield front


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
