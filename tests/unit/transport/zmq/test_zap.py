"""Which questions of ZAP are answered with yes, and how many handshakes an address may begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from shardbus.transport.secret_file import secrets_text, write_private
from shardbus.transport.zmq import zap
from shardbus.transport.zmq.curve import Keyring, derive
from shardbus.transport.zmq.zap import ENDPOINT, HandshakeLimit, ZapHandler, plain_address
from tests.waiting import PATIENCE_S

ONE, TWO = bytes([1]) * 32, bytes([2]) * 32
KNOWN = z85.decode(derive(ONE).node.public)


class Asker:
    """The side of ZeroMQ."""

    def __init__(self, folder: Path) -> None:
        path = folder / "s"
        write_private(path, secrets_text([ONE]))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.denied: list[str] = []
        self.failures: list[int] = []
        self.limit = HandshakeLimit(burst=2, refill=0)
        self.handler = ZapHandler(
            self.context,
            Keyring(path),
            self.limit,
            on_denied=self.denied.append,
            on_failed=lambda: self.failures.append(1),
        )
        self.socket = self.context.socket(zmq.REQ)
        self.socket.connect(ENDPOINT)

    def ask(self, *parts: bytes) -> list[bytes]:
        self.socket.send_multipart(parts)
        assert self.socket.poll(1000 * PATIENCE_S)
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.handler.stop()
        self.context.destroy(0)


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    asker = Asker(tmp_path)
    yield asker
    asker.close()


def question(**changed: bytes) -> list[bytes]:
    fields = {
        "version": b"1.0",
        "request": b"7",
        "domain": b"shardbus",
        "address": b"10.0.0.1",
        "identity": b"",
        "mechanism": b"CURVE",
        "key": KNOWN,
    }
    return list((fields | changed).values())


def test_a_known_key_is_admitted_under_its_name(asker: Asker) -> None:
    version, request, status, _, user, rest = asker.ask(*question())
    assert (version, request, status, rest) == (b"1.0", b"7", b"200", b"")
    assert user.decode() == f"secret {derive(ONE).fingerprint}"
    assert asker.denied == []


@pytest.mark.parametrize(
    "parts",
    [
        question(key=z85.decode(derive(TWO).node.public)),
        question(key=z85.decode(derive(ONE).server.public)),
        question(key=KNOWN[:31]),
        question(key=KNOWN + b"\0"),
        question(key=b""),
        question(mechanism=b"NULL", key=b""),
        question(mechanism=b"PLAIN"),
        question(domain=b""),
        question(domain=b"other"),
        question(version=b"2.0"),
        question()[:-1],
        [*question(), b"more"],
        [b"1.0", b"7"],
    ],
    ids=range(13),
)
def test_everything_else_is_refused_and_counted(asker: Asker, parts: list[bytes]) -> None:
    version, request, status, *_ = asker.ask(*parts)
    assert (version, request, status) == (b"1.0", b"7", b"400")
    assert asker.denied == ["unknown_key"]


def test_a_key_that_cannot_be_checked_is_refused_and_the_next_is_answered(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(zap.z85, "encode", lambda key: 1 / 0)
        assert asker.ask(*question())[2] == b"400"
    assert "could not be checked" in caplog.text
    assert asker.ask(*question())[2] == b"200"
    assert asker.failures == []


def test_the_end_of_the_thread_is_reported(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ZapHandler, "_answer", lambda self, parts: 1 / 0)
    asker.socket.send_multipart(question())
    asker.handler._thread.join(PATIENCE_S)
    assert not asker.handler._thread.is_alive()
    assert asker.failures == [1]
    assert "every new connection is refused" in caplog.text


# Handshakes


def test_an_address_has_a_burst_and_then_a_rate() -> None:
    limit = HandshakeLimit(burst=3, refill=2)
    assert [limit.accepted("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert limit.accepted("b", 0.0)
    assert [limit.accepted("a", 1.0) for _ in range(3)] == [True, True, False]


def test_authenticated_connections_do_not_count() -> None:
    limit = HandshakeLimit(burst=3, refill=0)
    for _ in range(100):
        assert limit.accepted("a", 0.0)
        limit.authenticated("a", 0.0)
    assert [limit.accepted("a", 0.0) for _ in range(4)] == [True, True, True, False]


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    limit = HandshakeLimit()
    for n in range(zap.ADDRESSES_MAX + 100):
        limit.accepted(str(n), 0.0)
    assert len(limit._attempts) == zap.ADDRESSES_MAX


@pytest.mark.parametrize(
    ("text", "plain"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")],
)
def test_kernel_and_zeromq_name_an_address_alike(text: str, plain: str) -> None:
    assert plain_address(text) == plain
