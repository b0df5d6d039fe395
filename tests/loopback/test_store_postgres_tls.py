"""The PostgreSQL store over TLS: a server of an authority of one's own, one that is not trusted,
and each `sslmode`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.store.opening import open_store
from shardbus.testing.store_suite import save
from tests import postgres_server
from tests.certificates import Certificates
from tests.postgres_server import CERTIFIED, PostgresServer
from tests.unit.store.store_suite import LONG_S

pytestmark = pytest.mark.long

OF_OURS = """
SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
WHERE application_name = 'shardbus' AND ssl
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[PostgresServer]:
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with PostgresServer(certificates=certificates) as server:
        server.run(f"CREATE ROLE {CERTIFIED} LOGIN SUPERUSER")
        yield server


@pytest.fixture(scope="module")
def operations() -> Iterator[int]:
    return itertools.count(1)


@pytest.mark.parametrize(
    ("mode", "host", "encrypted"),
    [
        ("verify-full", "127.0.0.1", True),
        ("verify-ca", "localhost", True),
        ("require", "localhost", True),
        ("prefer", "localhost", True),
        ("disable", "127.0.0.1", False),
    ],
)
async def test_a_store_is_used_by_each_mode(
    server: PostgresServer,
    certificates: Certificates,
    operations: Iterator[int],
    mode: str,
    host: str,
    encrypted: bool,
) -> None:
    """The certificate is for 127.0.0.1, so verify-full would refuse localhost. Only the modes that
    verify read the authority."""
    options = {"sslmode": mode}
    if mode.startswith("verify"):
        options["sslrootcert"] = str(certificates.authority)
    url = server.url(**options).replace("127.0.0.1", host)
    store = open_store(url, cluster="shop", timeout=LONG_S)
    await store.start()
    assert await store.save_states([save("a", 1, b"x", next(operations))]) == [None]
    [row] = await server.ask(OF_OURS)
    assert (row["count"] > 0) == encrypted
    await store.close()


@pytest.mark.parametrize(
    ("authority", "mode", "host"),
    [
        ("theirs", "verify-full", "127.0.0.1"),
        ("theirs", "verify-ca", "127.0.0.1"),
        ("none", "verify-full", "127.0.0.1"),
        ("ours", "verify-full", "localhost"),
    ],
)
async def test_a_server_that_is_not_trusted_is_refused_with_the_remedy(
    server: PostgresServer,
    certificates: Certificates,
    tmp_path: Path,
    authority: str,
    mode: str,
    host: str,
) -> None:
    options = {"sslmode": mode}
    if authority == "ours":
        options["sslrootcert"] = str(certificates.authority)
    elif authority == "theirs":
        options["sslrootcert"] = str(Certificates(tmp_path / "theirs").authority)
    url = server.url(**options).replace("127.0.0.1", host)
    store = open_store(url, cluster="shop", timeout=LONG_S)
    hint = "check sslmode, sslrootcert, and the host name in the server's certificate"
    with pytest.raises(StoreUnavailable, match=f"cannot be trusted: .*certificate.*; {hint}"):
        await store.start()


async def test_a_server_without_tls_is_refused_if_tls_is_asked_for(
    own_postgres: PostgresServer,
) -> None:
    store = open_store(own_postgres.url(sslmode="require"), cluster="shop", timeout=LONG_S)
    with pytest.raises(StoreUnavailable, match=r"cannot be trusted: .*; check sslmode"):
        await store.start()


async def test_a_certificate_opens_the_server_and_without_one_the_user_is_refused(
    server: PostgresServer, certificates: Certificates, operations: Iterator[int]
) -> None:
    certificate, key = certificates.issue(CERTIFIED, "DNS:client")
    trusted = {"sslmode": "verify-full", "sslrootcert": str(certificates.authority)}
    options = {"sslcert": str(certificate), "sslkey": str(key)}
    store = open_store(
        server.url(CERTIFIED, **trusted, **options, schema="certified"),
        cluster="shop",
        timeout=LONG_S,
    )
    await store.start()
    assert await store.save_states([save("a", 1, b"x", next(operations))]) == [None]
    await store.close()
    without = open_store(server.url(CERTIFIED, **trusted), cluster="shop", timeout=LONG_S)
    with pytest.raises(ConfigError, match="refuses this user"):
        await without.start()
